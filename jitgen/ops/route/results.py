# SPDX-License-Identifier: Apache-2.0
"""Results of `route` and `sort_pairs`."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Routing(NamedTuple):
    """
    Experts of tokens, and the rows of their pairs after sorting by local expert.

    A pair is a token with one of its experts: pair ``t * k + j`` is slot j of token t. P = T k.

    Attributes:
        topk_weights: (T, k) float32.
        topk_ids: (T, k) int32, experts of all devices, the best first.
        offs: (G,) int32, as `jitgen.grouped_gemm` takes it: the row behind each local expert's.
        permutation: (P,) int32: the pair in each sorted row, expert after expert, the pairs of one
            in ascending order; -1 in rows from ``offs[-1]`` on.
        inverse: (T, k) int32: the sorted row of each pair; -1 where its expert is not local, which
            `jitgen.combine` leaves out and which as an index of torch's would be the last row.
    """

    topk_weights: Tensor
    topk_ids: Tensor
    offs: Tensor
    permutation: Tensor
    inverse: Tensor


class Sorting(NamedTuple):
    """The last three fields of a `Routing`."""

    offs: Tensor
    permutation: Tensor
    inverse: Tensor
