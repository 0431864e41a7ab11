# SPDX-License-Identifier: Apache-2.0
"""Kernels of `silu_mul_quantize`, from the registry, and how to run them."""

from __future__ import annotations

from functools import cache
from typing import Any

import jitgen
from jitgen.codegen.render import render
from jitgen.config import Arch
from jitgen.config.silu_mul_quantize import SiluMulQuantizeConfig, Tiling
from jitgen.emulator import Artifact, Report
from jitgen.verify.artifacts import compiled
from tests.silu_cases import Case, Kernel

KERNELS = [
    Kernel(),
    Kernel(layout="masked", activation="swiglu_oai", interleaved=True, power_of_two=True),
    Kernel(layout="contiguous", interleaved=True),
    Kernel(scale_granularity="row", activation="swiglu_oai", power_of_two=True),
    Kernel(layout="masked", scale_granularity="row"),
    Kernel(layout="contiguous", scale_granularity="tensor", activation="swiglu_oai"),
    Kernel(layout="masked", scale_granularity="tensor", interleaved=True),
    Kernel(scale_granularity="none", activation="swiglu_oai", interleaved=True),
    Kernel(layout="contiguous", scale_granularity="none"),
]
"""Every value of every field, and every layout with every kind of scale or nearly so."""


def label(kernel: Kernel) -> str:
    """Return a short name of a kernel."""
    return f"{kernel.layout}-{kernel.scale_granularity}-{kernel.activation}"


@cache
def on_gpu(config: SiluMulQuantizeConfig) -> Artifact:
    """Return a kernel of sm_90a, which an emulator can run."""
    return compiled(render(config, Arch.SM_90A))


def run_on_cpu(case: Case) -> None:
    """Let the cpu compute a case."""
    jitgen.get_kernel(case.kernel.config(), Arch.CPU).function(*case.arguments)


def emulated(case: Case, tiling: Tiling, *, num_sms: int = 2, modes: Any = "quick") -> Report:
    """Let an emulated GPU with `num_sms` SMs compute a case."""
    kernel = on_gpu(case.kernel.config(tiling))
    return jitgen.emulate(kernel, *case.arguments, num_sms, modes=modes, num_sms=num_sms)
