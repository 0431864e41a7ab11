# SPDX-License-Identifier: Apache-2.0
"""A machine without the compiler runs what was compiled elsewhere; see docs/install.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jitgen.config import Arch
from tests import runtime_host
from tests.compile.fallback_calls import NEIGHBOUR, WANTED

PROGRAM = """
import importlib.util, json
import jitgen, jitgen.errors
from tests.compile.fallback_calls import FEW, MANY, call

events = []
jitgen.on_event(lambda event: events.append((event.kind, event.tier)))
call(FEW)
try:
    call(MANY)
except jitgen.errors.JitgenError as error:
    miss = f"{type(error).__name__}: {error}"
has = [name for name in ("cutlass", "jinja2") if importlib.util.find_spec(name)]
print(json.dumps({"events": events, "has": has, "miss": miss}))
"""
NAME, OTHER = NEIGHBOUR.name(Arch.CPU), WANTED.name(Arch.CPU)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runtime_host.make(tmp_path_factory.mktemp("runtime"))


def check(python: Path, cache: Path) -> None:
    """Run a prewarmed kernel and ask the doctor, with the Python of a machine that runs kernels."""
    done = runtime_host.run(python, "-c", PROGRAM, cache=cache)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)

    assert ["hit", "disk"] in said["events"]
    assert "compile" not in [kind for kind, _ in said["events"]]
    assert "cutlass" not in said["has"]
    miss = f"ToolchainError: {OTHER}: kernels cannot be compiled here: nvidia-cutl"
    assert said["miss"].startswith(miss)
    assert "prewarm the cache on a machine that compiles" in said["miss"]

    doctor = runtime_host.run(python, "-m", "jitgen", "doctor", "--json", cache=cache)
    found = {item["name"]: item for item in json.loads(doctor.stdout)["findings"]}
    assert doctor.returncode == 0, doctor.stdout
    assert found["compile"]["value"].startswith("no: nvidia-cutlass-dsl")
    assert found["load"]["value"] == found["run cpu"]["value"] == "yes"
    assert "told by nvidia-cutlass-dsl-libs-cu1" in found["release"]["value"]


class TestLinks:
    """The environment without its installation: fast enough for every push."""

    def test_a_prewarmed_kernel_runs(self, python: Path, neighbour_root: Path) -> None:
        check(python, neighbour_root)

    def test_commands_that_compile_say_what_is_missing(
        self, python: Path, neighbour_root: Path
    ) -> None:
        for words, what in (
            (("prewarm", "--config", OTHER), "kernels cannot be compiled here: nvidia-cutlass-dsl"),
            (
                ("show", OTHER, "--source"),
                "no source can be generated here",
            ),
        ):
            done = runtime_host.run(python, "-m", "jitgen", *words, cache=neighbour_root)
            assert done.returncode == 1
            assert what in done.stderr

    def test_commands_that_look_work(self, python: Path, neighbour_root: Path) -> None:
        for words in (
            ("cache", "ls"),
            ("cache", "explain", NAME),
            ("prewarm", "--config", NAME, "--check"),
            ("select", *["-g", "2", "-m", "5", "-n", "64", "-k", "128", "--arch", "cpu"]),
        ):
            done = runtime_host.run(python, "-m", "jitgen", *words, cache=neighbour_root)
            assert done.returncode == 0, done.stderr
        explained = runtime_host.run(
            python, "-m", "jitgen", "cache", "explain", NAME, cache=neighbour_root
        )
        assert "\nhit " in explained.stdout


@pytest.mark.nightly
def test_the_documented_commands(tmp_path: Path, neighbour_root: Path) -> None:
    """Docs state the commands; here they run as they stand, but for the name of the folder."""
    text = (runtime_host.ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- command: runtime -->\n\n(.*?)\n\n<!-- end -->", text, re.DOTALL)
    assert block is not None
    checkout = tmp_path / "checkout"  # a build leaves things behind
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(runtime_host.ROOT, checkout, symlinks=True, ignore=ignored)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    for line in block[1].splitlines():
        command = line.strip().replace("pip", f"{tmp_path}/venv/bin/pip", 1)
        subprocess.run(command, shell=True, check=True, cwd=checkout)  # noqa: S602

    check(tmp_path / "venv" / "bin" / "python", neighbour_root)


def test_the_documents_name_what_is_needed() -> None:
    """A new requirement of jitgen's is one of such machines, unless only compiling needs it."""
    text = (runtime_host.ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if "pip install" in line and "diskcache" in line)
    named = {word for word in line.split("install", 1)[1].split() if not word.startswith("-")}

    assert named - {"constraints.txt"} == set(runtime_host.requirements())
