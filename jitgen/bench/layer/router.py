# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3's router in front of a share of the experts: logits, choice, and what is right."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.layer.cases import Case
from jitgen.config import Arch, DType
from jitgen.config.route import RouteProblem, Scoring
from jitgen.ops.route.results import Routing
from jitgen.support.frozen import frozen

GROUPS, TOP_GROUPS, SCALE = 8, 4, 2.5

_NEAR, _OF_VALUE, _MATCHED = 0.1, 0.2, 0.85
"""
The tolerance of the public definition of this layer, moe_fp8_block_scale_ds_routing: so large a
part of the values are within 0.1 plus 0.2 of the expected one.
"""


@frozen
class Router:
    """
    The logits of a case.

    Attributes:
        logits: (T, E) float32, E experts of all devices.
        bias: (E,) float32.
        choice: What `jitgen.route` is told besides; experts that are here are the first ones.
    """

    logits: Tensor
    bias: Tensor
    choice: dict[str, Any]

    @classmethod
    def random(cls, case: Case, generator: torch.Generator) -> Router:
        """Return random logits, and a bias that matters but chooses no favourites."""
        normal = partial(torch.randn, device=generator.device, generator=generator)
        return cls(
            logits=normal(case.tokens, case.of),
            bias=normal(case.of) / 100,
            choice={
                "top_k": case.top_k,
                "scoring": str(Scoring.SIGMOID),
                "expert_groups": GROUPS,
                "top_groups": TOP_GROUPS,
                "scale": SCALE,
                "local_experts": case.experts,
            },
        )

    def route(self, out: Routing | None = None) -> Routing:
        """Return what jitgen's kernel makes of it."""
        return jitgen.route(self.logits, bias=self.bias, out=out, **self.choice)

    def expected(self) -> Routing:
        """Return the same in torch."""
        return jitgen.reference.route(self.logits, bias=self.bias, **self.choice)


def kernel_names(case: Case, arch: Arch) -> Iterator[str]:
    """Yield the kernel that chooses experts."""
    problem = RouteProblem(
        m=case.tokens,
        experts=case.of,
        top_k=case.top_k,
        scoring=Scoring.SIGMOID,
        scores_dtype=DType.F32,
        bias=True,
        expert_groups=GROUPS,
        local_experts=case.experts,
    )
    yield jitgen.select(problem, arch).config.name(arch)


def require_matched(side: str, found: Tensor, expected: Tensor) -> None:
    """
    Require values as near as the public definition does.

    Raises:
        WrongResult: Too few are.
    """
    is_near = (found.float() - expected).abs() <= _NEAR + _OF_VALUE * expected.abs()
    part = float(is_near.float().mean())
    if not part >= _MATCHED:
        raise WrongResult(f"{side} is wrong: {part:.3f} of the values match, not {_MATCHED}")
