# SPDX-License-Identifier: Apache-2.0
"""Kernels of `silu_mul_quantize`, compiled once for a whole test session, and how to run them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jitgen.compile.compiler import compile_source
from jitgen.config import Arch
from jitgen.emulator.api import emulate
from jitgen.emulator.artifact import Artifact
from jitgen.emulator.report import Report
from tests.silu_cases import Case, Kernel, Tiling, rendered

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
def on_cpu(kernel: Kernel) -> Callable[..., None]:
    """Return a kernel of the cpu, ready to be called."""
    import tvm_ffi

    made = compile_source(rendered(kernel, Arch.CPU))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, made.library)
        path.write_bytes(made.files[made.library])
        function: Callable[..., None] = tvm_ffi.load_module(str(path)).get_function(made.symbol)
        return function


@cache
def on_gpu(kernel: Kernel, tiling: Tiling) -> Artifact:
    """Return a kernel of sm_90a, which an emulator can run."""
    source = rendered(kernel, Arch.SM_90A, tiling)
    made = compile_source(source, wants_ptx=True, line_info=True)
    return Artifact(
        library=made.files[made.library],
        symbol=made.symbol,
        ptx=made.ptx,
        source=source.text,
        names=("x", "groups", "q", "scale"),
    )


def run_on_cpu(case: Case) -> None:
    """Let the cpu compute a case."""
    on_cpu(case.kernel)(*case.arguments)


def emulated(case: Case, tiling: Tiling, *, num_sms: int = 2, modes: Any = "quick") -> Report:
    """Let an emulated GPU with `num_sms` SMs compute a case."""
    kernel = on_gpu(case.kernel, tiling)
    return emulate(kernel, *case.arguments, num_sms, modes=modes, num_sms=num_sms)
