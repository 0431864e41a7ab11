# SPDX-License-Identifier: Apache-2.0
"""Kernels of `activation_quantize`, from the registry, and how to run them."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import jitgen
from jitgen.config import Arch
from jitgen.config.activation_quantize import ActivationQuantizeConfig, Tiling
from jitgen.emulator import Report
from jitgen.targets.base import kinds_of
from jitgen.targets.legality import check
from tests.activation_cases import Case
from tests.cases import values
from tests.compile.kernels import on_gpu
from tests.covering import covering

BLOCKS = ActivationQuantizeConfig(layout="ragged")
LEGAL = [kind for kind in kinds_of(BLOCKS) if check(kind, Arch.CPU)]
"""Every kind that a CPU computes, with the default tiling, which no CPU has."""

OFTEN = covering(LEGAL, values)
"""Few kinds that have every value of every field between them, for every push."""

PAIRS = covering(LEGAL, lambda kernel: combinations(sorted(values(kernel)), 2))
KERNELS = [*dict.fromkeys([*OFTEN, *PAIRS])]
"""Kernels of `OFTEN`, then others, so that every two values of two fields occur together."""

ID = ActivationQuantizeConfig.to_name
"""How a kernel is named in the name of a case."""

ROWS = ActivationQuantizeConfig(layout="masked", scale_granularity="row")
INTERLEAVED = ActivationQuantizeConfig(
    layout="masked", activation="swiglu_oai", interleaved=True, power_of_two=True
)
ROUNDED = ActivationQuantizeConfig(
    layout="ragged", scale_granularity="row", activation="swiglu_oai", power_of_two=True
)


def run_on_cpu(case: Case) -> None:
    """Let the cpu compute a case."""
    jitgen.get_kernel(case.kernel, Arch.CPU).function(*case.arguments)


def emulated(case: Case, tiling: Tiling, *, num_sms: int = 2, modes: Any = "quick") -> Report:
    """Let an emulated GPU with `num_sms` SMs compute a case."""
    kernel = on_gpu(replace(case.kernel, tiling=tiling))
    return jitgen.emulate(kernel, *case.arguments, num_sms, modes=modes, num_sms=num_sms)
