# SPDX-License-Identifier: Apache-2.0
"""What compile processes of a prewarm share is done before they are forked, and once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from jitgen.cache import Store
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.plans.task import compile_task

_CHILD = """
import json, os, sys
from jitgen.compile import compile as compiling
from jitgen.compile.compiler import Artifact
from jitgen.compile.worker_server import preload
from jitgen.plans import task as module

tasks = json.load(sys.stdin)
preload(["jitgen.compile.compiler", "jitgen.codegen.render", *module.PRELOAD], [], tasks)
threads = len(os.listdir("/proc/self/task"))

from jitgen.codegen import render

rendered, parsed, walked, walk = [], [], [], os.walk

def compile_kernel(config, arch, *_, **__):
    source = render.render(config, arch)
    rendered.append(source.name)
    files = {"kernel.py": source.text.encode(), "kernel.so": b""}
    return Artifact(
        symbol=source.name, files=files, library="kernel.so", compile_s=0.0, link_s=0.0
    )

compiling.compile_kernel = compile_kernel
render.Loader.prepared = lambda _, text, name: parsed.append(name)
os.walk = lambda *found, **options: walked.append(found[0]) or walk(*found, **options)
before = {*sys.modules}
tiers = [module.build_task(task)["tier"] for task in tasks]
later = sorted(
    name
    for name in {*sys.modules} - before
    if name.partition(".")[0] not in sys.stdlib_module_names
)
print(json.dumps([tiers, threads, rendered, parsed, walked, later]))
"""


def test_processes_are_forked_with_all_that_each_would_load(tmp_path: Path) -> None:
    """
    A process of a task parses no template, imports nothing but the compiler, lists no files of it,
    and renders its kernel once.
    """
    wanted = {
        GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=64, n=128, k=128)): Arch.SM_90A,
        GroupedGemmConfig(layout=Layout.MASKED, tile=Tile(m=8, n=32, k=128)): Arch.CPU,
    }
    store = Store.open(tmp_path / "root")
    tasks = [compile_task(store, config, arch) for config, arch in wanted.items()]

    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(tasks),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        ["compiled", "compiled"],
        1,
        [config.name(arch) for config, arch in wanted.items()],
        [],
        [],
        [],
    ]
