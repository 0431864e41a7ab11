# SPDX-License-Identifier: Apache-2.0
"""
An environment like that of a machine that only runs kernels: no compiler, no templates' engine.

A real virtual environment, whose packages are links to those of the environment that runs the
tests. Of the compiler it has one library, and the metadata of the part that this belongs to.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from jitgen.compile import toolchain
from jitgen.runtime.kernel import runtime_library

ROOT = Path(__file__).parents[1]
COMPILE_ONLY = {"nvidia-cutlass-dsl", "jinja2"}
"""The requirements of jitgen's that loading and running kernels do without."""


def requirements() -> list[str]:
    """Return the distributions that a machine needs that only runs kernels, but for the library."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = (Requirement(text).name for text in project["dependencies"])
    return [name for name in names if name not in COMPILE_ONLY]


def make(folder: Path, packages: list[str] | None = None) -> Path:
    """
    Make the environment in `folder`; returns its Python.

    It has `packages`, by default the `requirements`, and what they require.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in _closure(requirements() if packages is None else packages):
        for top in _top_level(metadata.distribution(name)):
            if not (site / top.name).exists():
                (site / top.name).symlink_to(top)
    part = metadata.distribution(toolchain.FLAVOURS[toolchain.flavour() or 12])
    record = next(path for path in part.files or () if path.name == "METADATA")
    folder_of_part = Path(str(part.locate_file(record))).parent
    (site / folder_of_part.name).symlink_to(folder_of_part)
    library = runtime_library()
    assert library is not None
    copy = site.joinpath("nvidia_cutlass_dsl", *library.parts[-3:])
    copy.parent.mkdir(parents=True)
    copy.symlink_to(library)
    return folder / "bin" / "python"


def run(python: Path, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run `python` with the jitgen of this checkout and the kernels in `cache`."""
    return subprocess.run(
        [str(python), *arguments],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(cache.parent),
            "PYTHONPATH": str(ROOT),
            "JITGEN_CACHE_DIR": str(cache),
        },
        cwd=cache.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def _closure(names: list[str]) -> set[str]:
    """Return `names` and all that they require."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower()
        if name in found or toolchain.version(name) is None:
            continue
        found.add(name)
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found - COMPILE_ONLY


def _top_level(distribution: metadata.Distribution) -> set[Path]:
    """Return the folders and modules that a distribution puts into site-packages."""
    tops = {path.parts[0] for path in distribution.files or () if ".." not in path.parts}
    return {Path(str(distribution.locate_file(top))) for top in tops if top != "__pycache__"}
