# SPDX-License-Identifier: Apache-2.0
"""Mistakes made on purpose in the formulas of activations: `jitgen verify` finds each."""

from __future__ import annotations

from typing import Any

import pytest

from jitgen.config import Config, Layout
from jitgen.config.activation_quantize import Activation
from jitgen.ops.activation_quantize.samples import Sizes
from tests import needs
from tests.compile.mutations import Mutation, rewrite
from tests.compile.programs import Programs, is_found_by_verify

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

EDITS: dict[Activation, dict[str, tuple[str, str]]] = {
    Activation.SWIGLU_CLAMP: {
        "the gate is not limited": ("    gate = at_most(gate, limit)\n", ""),
        "the gate is limited in front of its sigmoid alone": (
            "    gate = at_most(gate, limit)\n    y = gate * sigmoid(gate)",
            "    y = gate * sigmoid(at_most(gate, limit))",
        ),
        "the up is limited from above alone": ("within(up, limit)", "at_most(up, limit)"),
        "an up below -limit becomes limit": (
            "cute.full_like(x, -limit)",
            "cute.full_like(x, limit)",
        ),
        "an infinite power counts as e": ("fmin(bounded, LARGEST_POWER", "fmin(bounded, 1.0"),
        "nothing is inverted": ("cute.arch.rcp_approx(x[0])", "x[0]"),
    },
    Activation.SWIGLU_BIAS: {
        "no beta": ("within(up, limit) + beta", "within(up, limit)"),
        "no alpha": ("sigmoid(gate * alpha)", "sigmoid(gate)"),
        "alpha and beta change places": ("alpha, beta = numbers", "beta, alpha = numbers"),
        "beta is limited, too": ("(within(up, limit) + beta)", "within(up + beta, limit)"),
    },
    Activation.SWIGLU_STEP: {
        "the gate is limited before its silu": (
            "at_most(gate * sigmoid(gate), limit)",
            "at_most(gate, limit) * sigmoid(at_most(gate, limit))",
        ),
        "the up is not limited": ("within(up, limit)", "up"),
    },
    Activation.SITU: {
        "caps change places": ("gate_cap, up_cap = numbers", "up_cap, gate_cap = numbers"),
        "the sigmoid sees the capped gate": ("sigmoid(gate)", "sigmoid(softcap(gate, gate_cap))"),
        "a cap is no factor": ("tanh(x * (1.0 / cap)) * cap", "tanh(x * (1.0 / cap))"),
        "the up has no cap": ("softcap(up, up_cap)", "up"),
        "tanh() by its series far beyond it": ("size < 0.63", "size < 1.63"),
        "tanh() of negative numbers is positive": ("cute.where(x < 0.0, -large, large)", "large"),
        "tanh() lacks the first term of its series": ("(-0.33333272, ", "(0.0, "),
    },
    Activation.GEGLU: {
        "another width of the distribution": ("x * x * -0.5", "x * x * -0.4"),
        "both tails are one": ("cute.where(x < 0.0, tail, 1.0 - tail)", "tail"),
        "the tail ends early": ("size > 13.2", "size > 2.0"),
        "a factor of the series": ("0.099458829", "0.089458829"),
        "no up": ("gelu(gate) * up", "gelu(gate)"),
    },
    Activation.GEGLU_TANH: {
        "another cube": ("0.044715)", "0.04)"),
        "u is halved": ("1.5957691", "0.79788456"),
    },
    Activation.RELU2: {
        "no square": ("at_least_zero(gate) * at_least_zero(gate)", "at_least_zero(gate)"),
        "negative ones are squared": (
            "at_least_zero(gate) * at_least_zero(gate)",
            "gate * gate",
        ),
        "every thread loads the first vector": ("x[row, vector, None]", "x[row, 0, None]"),
    },
    Activation.RELU: {"positive ones are 0": ("x < 0.0", "x > 0.0")},
    Activation.SILU: {"a sigmoid of the other sign": ("exponential(-x)", "exponential(x)")},
    Activation.GELU: {"another width": ("size * 0.25", "size * 0.3")},
    Activation.GELU_TANH: {"another cube": ("0.044715)", "0.04)")},
    Activation.IDENTITY: {"a result is another one's": ("y = gate", "y = gate + gate")},
}
"""Of each activation with the formula of all targets, texts of a kernel and what stands there."""

OF_GROUPS: dict[Layout, dict[str, tuple[str, str]]] = {
    Layout.RAGGED: {
        "a first row has the numbers of the group before": ("[middle] <= row", "[middle] < row"),
        "rows of a tile have one group": ("tile[0], tile[1] + r", "tile[0], tile[1]"),
        "numbers are in another order": ("numbers[group, i]", "numbers[group, 2 - i]"),
        "every group has numbers of the first one": ("numbers[group, i]", "numbers[0, i]"),
    },
    Layout.MASKED: {"numbers of the next group": ("    return group\n", "    return group + 1\n")},
    Layout.CONTIGUOUS: {
        "numbers of the next row": (
            "return groups[cutlass.min(row, ",
            "return groups[cutlass.min(row + 1, ",
        )
    },
}
"""The same of kernels with numbers of each group."""

MISTAKES = [
    Mutation(
        name=f"{program}: {name}",
        program=str(program),
        edit=rewrite(edit),
        kind="wrong",
        of_source=True,
    )
    for program, edits in (*EDITS.items(), *OF_GROUPS.items())
    for name, edit in edits.items()
]


def _program(name: str) -> tuple[str, Sizes]:
    return name, Sizes.parse("3:20:256", Config.parse(name)[0])


PROGRAMS: dict[str, tuple[str, Any]] = {
    str(each): _program(f"activation_quantize_ragged_none_{each}_r2_c3_sm_90a") for each in EDITS
} | {
    str(each): _program(f"activation_quantize_{each}_none_swiglu_bias_pergroup_r2_c3_sm_90a")
    for each in OF_GROUPS
}


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs(PROGRAMS)


def test_every_formula_has_mistakes() -> None:
    """But those that each target has in its own way, which tests of accuracy cover."""
    assert EDITS.keys() == set(Activation) - {Activation.SWIGLU, Activation.SWIGLU_OAI}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_found(programs: Programs, mistake: Mutation) -> None:
    assert is_found_by_verify(programs[mistake.program], mistake)
