# SPDX-License-Identifier: Apache-2.0
"""
Suites that measure fresh processes: the start of a serving process, light commands, the emulator,
and prepacking MXFP4 weights. Each function that yields rows is a suite.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from jitgen.autotune.measure.clock import has_gpu
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.protocol import Row, python, python_environment, row_of, temporary_cache
from jitgen.config.config import BLayout

START_MS = 45.0
_STARTS = 9

PROBLEM = """\
import gc, json, sys, time
import torch

generator = torch.Generator().manual_seed(0)
m, n, k, groups = 64, 128, 256, 4
a = torch.randint(-3, 4, (m, k), generator=generator).to(torch.float8_e4m3fn)
b = torch.randint(-3, 4, (groups, n, k), generator=generator).to(torch.float8_e4m3fn)
a_scale = torch.ones(k // 128, m).T
b_scale = torch.ones(groups, n // 128, k // 128)
offs = torch.arange(m // groups, m + 1, m // groups, dtype=torch.int32)
"""
"""Beginning of a script that makes one small call with a known exact result."""

_FIRST_CALL = (
    PROBLEM
    + """\
before = set(sys.modules)
gc.collect()

start = time.perf_counter()
import jitgen

out = jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
seconds = time.perf_counter() - start

loaded = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
rows = [a[g * 16 : g * 16 + 16].float() @ b[g].float().T for g in range(groups)]
print(json.dumps({
    "seconds": seconds,
    "is_right": bool((out == torch.cat(rows).to(torch.bfloat16)).all()),
    "loaded": loaded,
}))
"""
)


def start() -> Iterator[Row]:
    """
    Yield the time from after ``import torch`` to the first right result, with a warm cache.

    The process must not import the compiler or Jinja. The garbage that importing torch leaves is
    collected before the measured time: collecting it takes as long as everything that is measured,
    and would happen at an arbitrary allocation.
    """
    with temporary_cache() as root:
        environment = {"JITGEN_CACHE_DIR": str(root), "JITGEN_ARCH": "cpu"}
        python(_FIRST_CALL, environment=environment)  # compiles the kernel
        environment["JITGEN_ON_MISS"] = "error"
        found = [json.loads(python(_FIRST_CALL, environment=environment)) for _ in range(_STARTS)]
    for result in found:
        if not result["is_right"]:
            raise WrongResult("a fresh process computed a wrong result")
        if forbidden := {"cutlass", "jinja2"} & set(result["loaded"]):
            raise WrongResult(f"a warm start imported {', '.join(sorted(forbidden))}")
    what = "import jitgen to the first right result"
    yield row_of("start", what, _times(found), "ms", START_MS)


def _times(found: Iterable[Mapping[str, float]]) -> Times:
    return Times(seconds=tuple(result["seconds"] for result in found))


STATS_S = 0.5
ENTRIES = 10_000
_RUNS = 7

_IMPORT = """\
import json, sys, time
start = time.perf_counter()
import jitgen
seconds = time.perf_counter() - start
heavy = sorted({"torch", "cutlass", "jinja2", "tvm_ffi", "rich", "diskcache"} & set(sys.modules))
print(json.dumps({"seconds": seconds, "heavy": heavy}))
"""


def cache() -> Iterator[Row]:
    """
    Yield the time of ``jitgen cache stats`` with its index, of its first run, which builds the
    index, and of ``import jitgen``.
    """
    with temporary_cache() as root:
        fabricate(root, ENTRIES)
        first = _stats(root)
        times = Times(seconds=tuple(_stats(root) for _ in range(_RUNS)))
    what = f"jitgen cache stats, {ENTRIES:,} entries, the whole process"
    yield row_of("cache", what, times, "s", STATS_S)
    what = "the same where the index is rebuilt from the entries"
    yield Row(suite="cache", what=what, value=first, unit="s", detail="one run")
    found = [json.loads(python(_IMPORT)) for _ in range(_RUNS)]
    for result in found:
        if result["heavy"]:
            raise WrongResult(f"import jitgen imports {', '.join(result['heavy'])}")
    what = "import jitgen, with neither torch nor the compiler"
    yield row_of("cache", what, _times(found), "ms")


def fabricate(root: Path, count: int) -> None:
    """Write `count` well-formed entries with small files, as in a full store."""
    from jitgen.cache import Meta
    from jitgen.cache.entry import META, entry_path, key_of
    from jitgen.cache.root import Root
    from jitgen.config import Arch, Layout
    from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile

    places = Root(root)
    with places.create():
        pass
    config = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=128, n=128, k=128))
    for number in range(count):
        document = {"schema": 1, "config": config.to_json(), "number": number}
        key = key_of(document)
        directory = entry_path(places.base, key)
        directory.mkdir(parents=True, mode=0o700)
        files = {"kernel.py": f"# {number}\n".encode(), "kernel.so": b"\x7fELF"}
        meta = Meta(
            key=key,
            key_document=document,
            name=config.name(Arch.SM_90A),
            arch=str(Arch.SM_90A),
            config=config.to_json(),
            symbol="kernel",
            library="kernel.so",
            files={},
            created="2026-01-01T00:00:00+00:00",
            compile_s=1.0,
            link_s=0.01,
            host_isa=(),
            jitgen="0",
        ).with_files(files)
        for name, content in {**files, META: meta.encode()}.items():
            (directory / name).write_bytes(content)


def _stats(root: Path) -> float:
    """Check the output of one ``jitgen cache stats`` and return its seconds."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jitgen", "cache", "stats", "--json"],
        env=python_environment({"JITGEN_CACHE_DIR": str(root)}),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    if done.returncode or json.loads(done.stdout)["entries"] != ENTRIES:
        raise WrongResult(f"jitgen cache stats failed: {done.stderr.strip()[-200:]}")
    return seconds


EMULATOR_S, EMULATOR_MB = 2.0, 600.0
_EMULATIONS = 3
_NAME = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a"

_COMPILE_ONE = """\
import sys
from pathlib import Path
from jitgen.compile.compiler import compile_source
from jitgen.codegen.render import render
from jitgen.config.grouped_gemm import GroupedGemmConfig

source = render(*GroupedGemmConfig.parse({name!r}))
made = compile_source(source, wants_ptx=True, line_info=True)
for name, content in {{**made.files, "kernel.ptx": made.ptx.encode()}}.items():
    Path({folder!r}, name).write_bytes(content)
"""

_EMULATE = """\
import json, resource
from pathlib import Path
from jitgen.emulator import Artifact
from jitgen.autotune.measure.workload import Workload
from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.verify import emulate

folder = Path({folder!r})
artifact = Artifact(
    library=(folder / "kernel.so").read_bytes(),
    symbol={name!r},
    ptx=(folder / "kernel.ptx").read_text(),
    source=(folder / "kernel.py").read_text(),
)
problem = GroupedGemmProblem(layout=Layout.RAGGED, groups=4, m=1024, n=1024, k=2048)
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


def emulator() -> Iterator[Row]:
    """
    Yield CPU seconds of a kernel in the emulator, and the memory of the process with its inputs.

    The kernel is compiled in one process and run in others, so that neither figure includes the
    compiler. The race checker is on; the result is checked before its time counts.
    """
    with TemporaryDirectory(prefix="jitgen-") as folder:
        python(_COMPILE_ONE.format(name=_NAME, folder=folder))
        if not Path(folder, "kernel.so").exists():
            raise WrongResult("the kernel was not linked: install gcc")
        script = _EMULATE.format(name=_NAME, folder=folder)
        found = [json.loads(python(script)) for _ in range(_EMULATIONS)]
    if not all(result["is_clean"] for result in found):
        raise WrongResult("the emulator found a mistake in the kernel")
    what = "CPU time: 128x128 on sm_90a, 4 x 256 rows, N 1024, K 2048, eager, races checked"
    yield row_of("emulator", what, _times(found), "s", EMULATOR_S)
    yield Row(
        suite="emulator",
        what="peak memory of that process, torch included",
        value=max(result["megabytes"] for result in found),
        unit="MB",
        budget=EMULATOR_MB,
        detail=f"{found[0]['counts']['matrix_instructions']:,} matrix instructions",
    )


EXPERTS = 128
N, K = 5760, 2880
_CPU_EXPERTS = 2
_MB = 1e6

LAYOUTS = tuple(layout for layout in BLayout if layout.is_prepacked)

_PREPARE = """\
import json, resource, sys, time
from pathlib import Path
import torch

from jitgen.formats.prepacked import prepack_mxfp4

layout, experts, n, k = sys.argv[1], *map(int, sys.argv[2:])
packed = torch.randint(0, 256, (experts, n, k // 2), dtype=torch.uint8)
scale = torch.randint(115, 124, (experts, n, k // 32), dtype=torch.uint8)
prepack_mxfp4(packed[:1, :64], scale[:1, :64], layout=layout)
pages = int(Path("/proc/self/statm").read_text().split()[1])
before = pages * resource.getpagesize()
start = time.perf_counter()
found = prepack_mxfp4(packed, scale, layout=layout)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "peak": peak - before - found.nbytes, "held": found.nbytes}))
"""


def prepare() -> Iterator[Row]:
    """
    Yield the cost of preparing MXFP4 weights for Hopper at load time: seconds, and peak memory, of
    every layout.

    The matrices are the gate and up projections of gpt-oss: all 128 experts on a GPU, two on a CPU
    in a fresh process. Prepacking handles one group after the other, so that its time grows with
    the number of experts, but its memory in addition to the result does not.
    """
    import torch

    for layout in LAYOUTS:
        sizes = map(str, (_CPU_EXPERTS, N, K))
        found = json.loads(python(_PREPARE, layout, *sizes))
        seconds = found["seconds"] / _CPU_EXPERTS * EXPERTS
        words = f"{EXPERTS} experts would take {seconds:.0f} s; {torch.get_num_threads()} threads"
        yield from _prepacked(layout, _CPU_EXPERTS, "CPU", found, words)
    if has_gpu():
        for layout in LAYOUTS:
            yield from _prepacked(layout, EXPERTS, "GPU", _on_gpu(layout), "")


def _on_gpu(layout: BLayout) -> dict[str, float]:
    """
    Return the seconds of prepacking weights, the peak bytes in addition to operands and result, and
    the bytes of the result.
    """
    import torch

    from jitgen.formats.prepacked import prepack_mxfp4

    sizes, bits = (EXPERTS, N), torch.uint8
    packed = torch.randint(0, 256, (*sizes, K // 2), dtype=bits, device="cuda")
    scale = torch.randint(115, 124, (*sizes, K // 32), dtype=bits, device="cuda")
    prepack_mxfp4(packed[:1], scale[:1], layout=layout)  # loads torch's kernels
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    found = prepack_mxfp4(packed, scale, layout=layout)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() - before - found.nbytes
    return {"seconds": seconds, "peak": peak, "held": found.nbytes}


def _prepacked(
    layout: BLayout, experts: int, where: str, found: dict[str, float], detail: str
) -> Iterator[Row]:
    what = f"{experts} experts N{N} K{K} as {layout}, {where}"
    yield Row(suite="prepare", what=what, value=found["seconds"], unit="s", detail=detail)
    yield Row(
        suite="prepare",
        what=f"{what}: memory beyond operands and result",
        value=found["peak"] / _MB,
        unit="MB",
        detail=f"the result takes {found['held'] / _MB:.0f} MB",
    )
