# SPDX-License-Identifier: Apache-2.0
"""`activation_backward`: its formulas beside torch's autograd, its kernels beside its reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch
from jitgen.config.activation_backward import (
    SUM_COLUMNS,
    ActivationBackwardConfig,
    ActivationBackwardProblem,
)
from jitgen.config.activation_quantize import Activation
from jitgen.errors import InputError
from jitgen.ops.activation_backward import reference, samples
from jitgen.ops.activation_backward.call import activation_backward
from jitgen.ops.activation_quantize import derivatives
from jitgen.ops.activation_quantize.reference import of_gate
from jitgen.targets.activation_space import USUAL
from jitgen.targets.base import kinds_of
from jitgen.targets.legality import check, rules
from tests import needs
from tests.arguments import int32
from tests.compile.kernels import on_gpu

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

every_activation = pytest.mark.parametrize("activation", [*Activation], ids=str)


def numbers_of(activation: Activation) -> list[float]:
    return [*samples.numbers_of(activation, is_exact=False).values()]


class TestFormulas:
    @every_activation
    def test_beside_autograd(self, activation: Activation) -> None:
        """Of the formula of the activation, in float64, far from where it has no derivative."""
        torch.manual_seed(0)
        gate, up = 3 * torch.randn(2, 40, 50, dtype=torch.float64)
        parts = [gate, up] if activation.is_gated else [gate]
        leaves = [each.clone().requires_grad_() for each in parts]
        given = leaves if activation.is_gated else [*leaves, None]
        y = of_gate(activation, *given, *numbers_of(activation))  # type: ignore[arg-type]
        wanted = torch.autograd.grad(y.sum(), leaves)
        value, *slopes = derivatives.of_gate(
            activation, gate, up if activation.is_gated else None, *numbers_of(activation)
        )

        assert torch.allclose(value, y.detach(), rtol=1e-9, atol=1e-12)
        for slope, each in zip(slopes, wanted, strict=False):
            assert slope is not None
            assert torch.allclose(slope, each, rtol=1e-9, atol=1e-9)

    @every_activation
    def test_gradcheck(self, activation: Activation) -> None:
        """The whole reference beside differences, in float64: of x and of the weights."""
        torch.manual_seed(1)
        offs = int32(2, 5)
        named: dict[str, Any] = {
            "activation": str(activation),
            **samples.numbers_of(activation, is_exact=False),
        }

        class Weighted(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
                ctx.save_for_backward(x, weights)
                dy = x.new_zeros(5, 6)
                return reference.activation_backward(dy, x, weights, offs=offs, **named)[1]

            @staticmethod
            def backward(ctx: Any, *found: Tensor) -> Any:
                x, weights = ctx.saved_tensors
                dx, _, sums = reference.activation_backward(
                    found[0], x, weights, offs=offs, **named
                )
                return dx, sums.sum(1)

        x = torch.randn(5, 6 * activation.inputs, dtype=torch.float64, requires_grad=True)
        weights = torch.rand(5, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(Weighted.apply, (x, weights))

    def test_relu_has_no_slope_at_0(self) -> None:
        _, slope, _ = derivatives.of_gate(Activation.RELU, torch.zeros(3), None)

        assert not slope.any()


KERNELS = [
    ActivationBackwardConfig(layout=layout, activation=activation, interleaved=interleaved)
    for layout, activation, interleaved in (
        ("ragged", "swiglu", False),
        ("masked", "swiglu_oai", True),
        ("contiguous", "relu2", False),
        ("ragged", "situ", False),
        ("ragged", "geglu", True),
        ("ragged", "swiglu_step", False),
    )
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.to_name())


@every_kernel
@pytest.mark.parametrize("is_exact", [True, False])
def test_on_the_cpu(kernel: ActivationBackwardConfig, is_exact: bool) -> None:
    """Odd columns too, of which the last sum has one."""
    for rows, n in (((3, 0, 9), 264), ((1,), 7), ((0, 2) * 20, SUM_COLUMNS + 1), ((0,), 8)):
        case = samples.make(kernel, samples.Sizes(rows=rows, n=n), is_exact=is_exact, seed=n)
        activation_backward(**case.arguments)

        assert not case.wrong(), (rows, n)


@every_kernel
@pytest.mark.sampled(5)
def test_emulated(kernel: ActivationBackwardConfig) -> None:
    """On sm_90a, with few warps, which all get several tiles."""
    tiling = replace(kernel.tiling, threads=64, ctas_per_sm=1)
    config = replace(kernel, tiling=tiling)
    for is_exact, (rows, n) in zip(
        (True, False), (((3, 0, 5, 1), 264), ((1, 2) * 9, 16)), strict=True
    ):
        case = samples.make(config, samples.Sizes(rows=rows, n=n), is_exact=is_exact)
        report = jitgen.emulate(on_gpu(config), *case.tensors, 1, num_sms=1)

        assert not [*report.findings]
        assert not case.wrong(), (rows, n)


def given() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "dy": torch.randn(6, 24).bfloat16(),
        "x": torch.randn(6, 48).bfloat16(),
        "weights": torch.rand(6),
        "offs": int32(2, 2, 5),
    }


def test_new_results() -> None:
    """The same bits as in `out`, and the same when a call is warm; other rows are not written."""
    dx, y, sums = activation_backward(**given())
    again = tuple(torch.full_like(each, 7.0) for each in (dx, y, sums))
    assert activation_backward(**given(), out=again) is again
    warm = activation_backward(**given())

    assert (dx.shape, y.shape, sums.shape) == ((6, 48), (6, 24), (6, 1))
    for one, other, third in zip((dx, y, sums), again, warm, strict=True):
        assert torch.equal(one[:5], other[:5])
        assert torch.equal(one[:5], third[:5])
        assert (other[5] == 7.0).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dy": torch.zeros(6, 24)}, "dy: must be bfloat16"),
        ({"x": torch.zeros(6, 24).bfloat16()}, "x: must have shape .*twice its columns"),
        ({"weights": torch.zeros(5)}, "weights: must have shape .*one for each row"),
        ({"weights": torch.zeros(6).bfloat16()}, "weights: must be float32"),
        ({"activation": "tanh"}, "activation: must be one of"),
        ({"activation": "relu2"}, "x: must have shape"),
        ({"swiglu_limit": 7.0}, "swiglu_limit: belongs to"),
        ({"activation": "swiglu_oai"}, "swiglu_limit: is required"),
        ({"interleaved": 1}, "interleaved: must be True or False"),
        ({"offs": int32()}, "offs: must have at least one group"),
        ({"out": (torch.zeros(1),) * 2}, "out: must be three tensors"),
        ({"out": (torch.zeros(6, 48).bfloat16(),) * 3}, r"out\[1\]: must have shape"),
        ({"dy": torch.zeros(6, 24).bfloat16().requires_grad_()}, "dy: must not require a gradient"),
    ],
    ids=str,
)
def test_refusals(change: dict[str, Any], words: str) -> None:
    for _ in ("fresh", "remembered"):
        with pytest.raises(InputError, match=words):
            activation_backward(**given() | change)


OF = rules(Arch.SM_90A, "activation_backward")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "kind",
    [each for each in kinds_of(USUAL) if check(each, "cpu")],
    ids=lambda each: each.to_name(),
)
def test_no_candidate_spills(kind: ActivationBackwardConfig) -> None:
    """And no tile that the rules leave just as many registers as they say it needs."""
    names = ("layout", "activation", "interleaved")
    problem = ActivationBackwardProblem(
        groups=1, m=8, n=2048, **{name: getattr(kind, name) for name in names}
    )
    every = {
        replace(kind, tiling=replace(kind.tiling, rows=rows, threads=128, ctas_per_sm=ctas))
        for rows in (1, 2)
        for ctas in (5, 4, 3)
    }
    for config in {*OF.candidates(problem), *(each for each in every if check(each, "sm_90a"))}:
        made = compiler.compile_source(render(config, Arch.SM_90A))
        found = inspect.resources(made.files[made.library])
        assert not found.stack_bytes, config.to_name()
        assert not found.spill_instructions, config.to_name()
        assert found.registers <= OF.derive(config).registers
