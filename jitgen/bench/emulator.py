# SPDX-License-Identifier: Apache-2.0
"""
The emulator on a kernel of the sm_90a menu: CPU seconds of a run, and the memory of its process.

Compiled in one process, run in others, so that neither counts the compiler. The race checker is on;
the result is right before its time counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.protocol import Row, python

BUDGET_S = 2.0
BUDGET_MB = 600.0
_PROCESSES = 3
_NAME = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a"

_COMPILE = """\
import sys
from pathlib import Path
from jitgen.compile.compiler import compile_source
from jitgen.codegen.render import render
from jitgen.config.grouped_gemm import KernelConfig

source = render(*KernelConfig.parse({name!r}))
made = compile_source(source, wants_ptx=True, line_info=True)
for name, content in {{**made.files, "kernel.ptx": made.ptx.encode()}}.items():
    Path({folder!r}, name).write_bytes(content)
"""

_RUN = """\
import json, resource
from pathlib import Path
from jitgen.emulator import Artifact
from jitgen.autotune.measure.workload import Workload
from jitgen.config import Layout
from jitgen.config.grouped_gemm import Problem
from jitgen.verify import emulate

folder = Path({folder!r})
artifact = Artifact(
    library=(folder / "kernel.so").read_bytes(),
    symbol={name!r},
    ptx=(folder / "kernel.ptx").read_text(),
    source=(folder / "kernel.py").read_text(),
)
problem = Problem(layout=Layout.RAGGED, groups=4, m=1024, n=1024, k=2048)
load = Workload.random(problem, device="cpu")
num_sms = 132
report = emulate(artifact, *load.tensors, num_sms, modes="eager", num_sms=num_sms)
load.check("the emulated kernel")
print(json.dumps({{
    "seconds": report.runs[0].cpu_seconds,
    "is_clean": report.is_clean,
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "counts": report.runs[0].counts,
}}))
"""


def rows() -> Iterator[Row]:
    """Yield the time of a run, and the memory of the process with its inputs."""
    with TemporaryDirectory(prefix="jitgen-") as folder:
        python(_COMPILE.format(name=_NAME, folder=folder))
        if not Path(folder, "kernel.so").exists():
            raise WrongResult("the kernel was not linked: install gcc")
        script = _RUN.format(name=_NAME, folder=folder)
        found = [json.loads(python(script)) for _ in range(_PROCESSES)]
    if not all(result["is_clean"] for result in found):
        raise WrongResult("the emulator found a mistake in the kernel")
    times = Times(seconds=tuple(result["seconds"] for result in found))
    yield Row(
        suite="emulator",
        what="CPU time: 128x128 on sm_90a, 4 x 256 rows, N 1024, K 2048, eager, races checked",
        value=times.median,
        unit="s",
        budget=BUDGET_S,
        detail=times.detail(1, "s"),
    )
    yield Row(
        suite="emulator",
        what="peak memory of that process, torch included",
        value=max(result["megabytes"] for result in found),
        unit="MB",
        budget=BUDGET_MB,
        detail=f"{found[0]['counts']['matrix_instructions']:,} matrix instructions",
    )
