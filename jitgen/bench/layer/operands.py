# SPDX-License-Identifier: Apache-2.0
"""
Weights of a layer, made once for the largest number of experts, and tokens with their routing for a
case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

import jitgen
from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.layer.cases import Case
from jitgen.config import Arch, DType
from jitgen.config.route import RouteProblem, Scoring
from jitgen.layer import reference
from jitgen.layer.config import MoEConfig
from jitgen.layer.lora import Adapters, ExpertLora
from jitgen.layer.weights import ExpertWeights
from jitgen.ops.route.results import Routing
from jitgen.quantize import per_block, per_row
from jitgen.support.frozen import frozen

ADAPTERS, RANK = 8, 16
"""Adapters of a batch, and their rank."""

CHECKED_TOKENS = 128
"""
Number of tokens whose results are compared, evenly spread over all: float32 sums of more tokens
would take seconds.
"""


@frozen
class Ready:
    """
    A side that can be called.

    Attributes:
        call: Enqueues the layer on the current stream, without waiting for the device.
        result: Returns the result of the last call or replay: (T, H) bfloat16.
        weights: The weights that the side uses.
        note: Caveat for readers; empty if there is none.
        adapters: The adapters whose results the side adds to the products.
    """

    call: Callable[[], object]
    result: Callable[[], Tensor]
    weights: ExpertWeights
    note: str = ""
    adapters: Adapters | None = None


def config_of(case: Case) -> MoEConfig:
    """Return the layer of a case."""
    return MoEConfig(
        hidden=case.hidden,
        intermediate=case.intermediate,
        experts=case.of or case.experts,
        local_experts=case.experts,
        top_k=case.top_k,
    )


def lora_of(case: Case, new: Callable[..., Tensor]) -> ExpertLora:
    """
    Return adapters of a case; `new` makes, for each adapter, a matrix with given numbers of rows
    and columns.
    """
    return ExpertLora(
        w13_a=new(RANK, case.hidden),
        w13_b=new(2 * case.intermediate, RANK),
        w2_a=new(RANK, case.intermediate),
        w2_b=new(case.hidden, RANK),
    )


class Experts:
    """
    Random FP8 weights of `count` experts, with scales of blocks and with scales of rows, each made
    at its first use.

    Args:
        case: The sizes.
        count: Number of experts.
        device: Device of the weights, by torch's name.
    """

    def __init__(self, case: Case, count: int, device: str) -> None:
        self._sizes = (count, case.hidden, case.intermediate)
        self._device = device

    @cached_property
    def by_block(self) -> ExpertWeights:
        """The weights with a scale for each 128 x 128 values."""
        return self._quantised(per_block)

    @cached_property
    def by_row(self) -> ExpertWeights:
        """
        The weights with a scale for each row, quantised from the same random numbers as `by_block`;
        they take as much memory again.
        """
        return self._quantised(per_row)

    def _quantised(self, function: Callable[[Tensor], tuple[Tensor, Tensor]]) -> ExpertWeights:
        count, hidden, intermediate = self._sizes
        generator = torch.Generator(self._device).manual_seed(1)
        parts: dict[str, Tensor] = {}
        for expert in range(count):
            for name, n, k in (("w13", 2 * intermediate, hidden), ("w2", hidden, intermediate)):
                values = torch.randn(n, k, device=self._device, generator=generator) * k**-0.5
                q, scale = function(values.unsqueeze(0))
                for key, each in ((name, q), (f"{name}_scale", scale)):
                    if key not in parts:
                        parts[key] = each.new_empty((count, *each.shape[1:]))
                    parts[key][expert] = each[0]
        return ExpertWeights(
            w13=parts["w13"],
            w2=parts["w2"],
            w13_scale=parts["w13_scale"],
            w2_scale=parts["w2_scale"],
        )


class Operands:
    """
    Inputs that every side of a case computes with.

    Attributes:
        case: The sizes.
        config: The layer.
        x: (T, H) bfloat16.
        topk_weights: (T, k) float32.
        topk_ids: (T, k) int32, different for each of a token's slots.
        active: Number of experts on this device that a token has chosen.
        router: The logits that experts are chosen by; None where they are given.
    """

    def __init__(self, case: Case, experts: Experts, device: str) -> None:
        generator = torch.Generator(device).manual_seed(case.tokens)
        self.case, self._experts = case, experts
        self.config = config_of(case)
        self.router = Router.random(case, generator) if case.of else None
        if self.router is not None:
            self.topk_weights, self.topk_ids, *_ = self.router.expected()
        else:
            shape = (case.tokens, case.experts)
            drawn = torch.rand(shape, device=device, generator=generator)
            self.topk_ids = drawn.argsort(-1)[:, : case.top_k].to(torch.int32).contiguous()
            shape = (case.tokens, case.top_k)
            self.topk_weights = torch.rand(shape, device=device, generator=generator)
        self.x = torch.randn(
            case.tokens, case.hidden, device=device, generator=generator, dtype=torch.bfloat16
        )
        here = self.topk_ids[self.topk_ids < case.experts]
        self.active = len(set(here.tolist()))

    @property
    def by_block(self) -> ExpertWeights:
        """The weights of the case's experts with a scale for each 128 x 128 values."""
        return self._part(self._experts.by_block)

    @property
    def by_row(self) -> ExpertWeights:
        """The weights of the case's experts with a scale for each row."""
        return self._part(self._experts.by_row)

    @property
    def active_bytes(self) -> int:
        """Bytes of the weights that have to be read."""
        return self.active * self.case.expert_bytes

    @cached_property
    def adapters(self) -> Adapters:
        """`ADAPTERS` adapters of rank `RANK`, which change the result as much as the weights do."""
        case, device = self.case, self.x.device
        generator = torch.Generator(device).manual_seed(2)

        def normal(*shape: int) -> Tensor:
            made = torch.empty(ADAPTERS, case.experts, *shape, dtype=torch.bfloat16, device=device)
            return made.normal_(0, shape[-1] ** -0.5, generator=generator)

        drawn = torch.randint(ADAPTERS, (case.tokens,), generator=generator, device=device)
        lora = lora_of(case, normal)
        return Adapters(lora, drawn.int())

    def check(
        self,
        side: str,
        found: Tensor,
        weights: ExpertWeights,
        adapters: Adapters | None = None,
    ) -> float:
        """
        Check a result of `side` with `weights` and return its error.

        Raises:
            WrongResult: The error is larger than the rounding of FP8 explains, or, with a router,
                too few values are close to the expected ones.
        """
        step = max(1, self.case.tokens // CHECKED_TOKENS)
        expected = self.expected(weights, step, adapters)
        error = reference.relative_error(found[::step], expected)
        limit = reference.TOLERANCE[str(weights.activation_format)]
        if not error < limit:
            raise WrongResult(f"{side} is wrong for {self.case}: error {error:.3g} above {limit}")
        if self.router is not None and adapters is None:
            require_matched(side, found[::step], expected)
        return error

    def expected(
        self, weights: ExpertWeights, step: int = 1, adapters: Adapters | None = None
    ) -> Tensor:
        """Return the results for every `step`-th token with `weights`, in float32."""
        given = (self.topk_weights[::step], self.topk_ids[::step], self.config)
        if adapters is not None:
            adapters = adapters.part(slice(None, None, step))
        return reference.moe(self.x[::step], weights, *given, adapters=adapters)

    def _part(self, weights: ExpertWeights) -> ExpertWeights:
        if weights.groups == self.case.experts:
            return weights
        part = {name: each[: self.case.experts] for name, each in weights.tensors.items()}
        return weights.of(part)


GROUPS, TOP_GROUPS, SCALE = 8, 4, 2.5

_NEAR, _OF_VALUE, _MATCHED = 0.1, 0.2, 0.85
"""
The tolerance of moe_fp8_block_scale_ds_routing, the public definition of this layer: the least part
of the values that must differ from the expected value by at most 0.1 plus 0.2 of it.
"""


@frozen
class Router:
    """
    The logits and the bias by which experts are chosen in a case.

    Attributes:
        logits: (T, E) float32, E experts of all devices.
        bias: (E,) float32.
        choice: Further arguments of `jitgen.route`; the experts on this device are the first ones.
    """

    logits: Tensor
    bias: Tensor
    choice: dict[str, Any]

    @classmethod
    def random(cls, case: Case, generator: torch.Generator) -> Router:
        """
        Return random logits, and a bias that changes choices but leaves all experts about equally
        likely.
        """
        normal = partial(torch.randn, device=generator.device, generator=generator)
        return cls(
            logits=normal(case.tokens, case.of),
            bias=normal(case.of) / 100,
            choice={
                "top_k": case.top_k,
                "scoring": str(Scoring.SIGMOID),
                "expert_groups": GROUPS,
                "top_groups": TOP_GROUPS,
                "routed_scaling_factor": SCALE,
                "local_experts": case.experts,
            },
        )

    def route(self, out: Routing | None = None) -> Routing:
        """Return the routing by jitgen's kernel."""
        return jitgen.route(self.logits, correction_bias=self.bias, out=out, **self.choice)

    def expected(self) -> Routing:
        """Return the routing in torch."""
        return jitgen.reference.route(self.logits, correction_bias=self.bias, **self.choice)


def names_of_router(case: Case, arch: Arch) -> Iterator[str]:
    """Yield the name of the kernel that chooses experts."""
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
    Check that as many values are close to the expected ones as the public definition of the layer
    requires: see `_MATCHED`.

    Raises:
        WrongResult: Too few values are that close.
    """
    is_near = (found.float() - expected).abs() <= _NEAR + _OF_VALUE * expected.abs()
    part = float(is_near.float().mean())
    if not part >= _MATCHED:
        raise WrongResult(f"{side} is wrong: {part:.3f} of the values match, not {_MATCHED}")
