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
        permutation: (P,) int32: the pair in each sorted row. Rows are in the order of experts, and
            the pairs of an expert in ascending order; -1 in rows from ``offs[-1]`` on.
        inverse: (T, k) int32: the sorted row of each pair; -1 if its expert is not local.
            `jitgen.combine` ignores -1; as an index of a torch tensor, -1 is the last row.
    """

    topk_weights: Tensor
    topk_ids: Tensor
    offs: Tensor
    permutation: Tensor
    inverse: Tensor


class Sorting(NamedTuple):
    """Results of sorting: the last three fields of `Routing`, which describes them."""

    offs: Tensor
    permutation: Tensor
    inverse: Tensor
