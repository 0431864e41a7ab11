# SPDX-License-Identifier: Apache-2.0
"""Light commands: `jitgen cache stats` with 10,000 entries, and `import jitgen`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.protocol import Row, python, python_environment, temporary_cache

STATS_BUDGET_S = 0.5
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


def rows() -> Iterator[Row]:
    """Yield the time of ``jitgen cache stats``, first and later, and of ``import jitgen``."""
    with temporary_cache() as root:
        fabricate(root, ENTRIES)
        first = _stats(root)
        times = Times(seconds=tuple(_stats(root) for _ in range(_RUNS)))
    yield Row(
        suite="cache",
        what=f"jitgen cache stats, {ENTRIES:,} entries, the whole process",
        value=times.median,
        unit="s",
        budget=STATS_BUDGET_S,
        detail=times.detail(1, "s"),
    )
    yield Row(
        suite="cache",
        what="the same where the index is rebuilt from the entries",
        value=first,
        unit="s",
        detail="one run",
    )
    found = [json.loads(python(_IMPORT)) for _ in range(_RUNS)]
    for result in found:
        if result["heavy"]:
            raise WrongResult(f"import jitgen imports {', '.join(result['heavy'])}")
    times = Times(seconds=tuple(result["seconds"] for result in found))
    yield Row(
        suite="cache",
        what="import jitgen, with neither torch nor the compiler",
        value=times.median * 1e3,
        unit="ms",
        detail=times.detail(1e3, "ms"),
    )


def fabricate(root: Path, count: int) -> None:
    """Write `count` well-formed entries with small files: what a store looks like that is full."""
    from jitgen.cache import Meta
    from jitgen.cache.entry import META, entry_path, key_of
    from jitgen.cache.root import Root
    from jitgen.config import Arch, Layout
    from jitgen.config.grouped_gemm import KernelConfig, Tile

    places = Root(root)
    with places.create():
        pass
    config = KernelConfig(layout=Layout.RAGGED, tile=Tile(m=128, n=128, k=128))
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
    """Return the seconds of one ``jitgen cache stats`` that counts right."""
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
