# SPDX-License-Identifier: Apache-2.0
"""Distributions of third parties, installed into folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import Done

ACME = Path(__file__).parent / "acme"


def install(folder: Path, scratch: Path) -> Path:
    """Install the test package into `folder`, by pip, without the network; returns `folder`."""
    source = scratch / "acme"  # a build leaves things behind
    shutil.copytree(ACME, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile")
    command = [sys.executable, "-m", "pip", "install", *options]
    subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(folder), str(source)],
        check=True,
        timeout=120,
    )
    return folder


def invent(folder: Path, name: str, points: dict[str, str], modules: dict[str, str]) -> None:
    """Write what pip leaves of distribution `name`, with entry points by ``GROUP:NAME``."""
    record = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for point, value in points.items():
        group, _, of = point.partition(":")
        lines += [f"[jitgen.{group}]", f"{of} = {value}"]
    (record / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)


def run(folder: Path, script: str, *, plugins: str = "") -> Done:
    """Run `script` in a process that finds what is installed in `folder`."""
    path = os.pathsep.join([*(part for part in sys.path if part), str(folder)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, "JITGEN_PLUGINS": plugins},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Done(done.returncode, done.stdout, done.stderr)
