# SPDX-License-Identifier: Apache-2.0
"""Calls that return values and their scales."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.ops.call import Args, Call, Validated

Scaled = tuple[Tensor, Tensor | None]
"""Values, and their scales, which some formats have none of."""


class ScaledCall(Call[Args, Validated, Scaled]):
    """
    A call that returns q and its scales; the caller may give the scale of a whole tensor.

    In a graph an empty tensor stands for scales that the kernel does not find, because results of
    an operation are neither None nor one of its arguments.
    """

    new_outputs = 1

    def finds_scales(self, args: Any) -> bool:
        """Say whether the kernel finds the scales."""
        raise NotImplementedError

    def to_results(self, args: Any, result: Scaled) -> tuple[Tensor, ...]:
        """Return q and its scales, or an empty tensor."""
        q, scale = result
        if scale is None or scale is args.global_scale:
            scale = q.new_empty(0, dtype=torch.float32)
        return q, scale

    def of_results(self, args: Any, tensors: tuple[Tensor, ...]) -> Scaled:
        """Return the result that these are the tensors of."""
        q, scale = tensors
        return q, scale if self.finds_scales(args) else args.global_scale
