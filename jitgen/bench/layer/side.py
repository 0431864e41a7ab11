# SPDX-License-Identifier: Apache-2.0
"""One way to compute a layer, with the operands of a case."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from jitgen.layer.weights import ExpertWeights
from jitgen.support.frozen import frozen


@frozen
class Ready:
    """
    A side that can be called.

    Attributes:
        call: Enqueues the layer on the current stream; waits for nothing.
        result: Returns what the last call, or replay of it, computed: (T, H) bfloat16.
        weights: What it multiplies with.
        note: What a reader must know of this case, if anything.
    """

    call: Callable[[], object]
    result: Callable[[], Tensor]
    weights: ExpertWeights
    note: str = ""
