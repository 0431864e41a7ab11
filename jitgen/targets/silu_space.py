# SPDX-License-Identifier: Apache-2.0
"""What every target says of `silu_mul_quantize`: which words of a config go together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from jitgen.config.config import Layout
from jitgen.config.silu_mul_quantize import (
    Activation,
    Scales,
    SiluMulQuantizeConfig,
    SiluMulQuantizeProblem,
)
from jitgen.targets.protocol import refuse_unless


def check_kind(config: SiluMulQuantizeConfig) -> None:
    """
    Require that scales that are rounded are found by the kernel.

    Raises:
        Refusal: Others are, with the code ``E_POWER_OF_TWO``.
    """
    refuse_unless(
        config.scale_granularity.is_found or not config.power_of_two,
        "E_POWER_OF_TWO",
        f"power_of_two is for scales that a kernel finds, block128 and row: those of "
        f"{config.scale_granularity} are not its own",
    )


def legal_kind(config: SiluMulQuantizeConfig) -> SiluMulQuantizeConfig:
    """Return `config` with words that go together."""
    is_rounded = config.power_of_two and config.scale_granularity.is_found
    return replace(config, power_of_two=is_rounded)


def kinds() -> Iterator[SiluMulQuantizeConfig]:
    """Yield every combination of words, legal or not, with the default tiling."""
    for layout, scales, activation, interleaved, power_of_two in itertools.product(
        Layout, Scales, Activation, (False, True), (False, True)
    ):
        yield SiluMulQuantizeConfig(
            layout=layout,
            scale_granularity=scales,
            activation=activation,
            interleaved=interleaved,
            power_of_two=power_of_two,
        )


def of_problem(problem: SiluMulQuantizeProblem) -> SiluMulQuantizeConfig:
    """Return the words of every kernel for `problem`, with the default tiling."""
    return SiluMulQuantizeConfig(
        layout=problem.layout,
        scale_granularity=problem.scale_granularity,
        activation=problem.activation,
        interleaved=problem.interleaved,
        power_of_two=problem.power_of_two,
    )
