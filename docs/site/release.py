# SPDX-License-Identifier: Apache-2.0
"""
What is uploaded to a package index: a source distribution and a wheel.

An index shows the README alone, so that its relative links would lead nowhere. They are rewritten
in a copy of the tree, from which both are built by setuptools; no network is asked.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.site import stage

README = "README.md"

_BUILD = """\
import sys
from setuptools import build_meta
out = sys.argv[1]  # setuptools puts words of its own there
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""


class NotBuilt(Exception):
    """There is no checkout to build from, or setuptools failed."""


def readme(home: str) -> str:
    """Return the README with absolute links, to the files of this version below `home`, a URL."""
    text = (stage.ROOT / README).read_text(encoding="utf-8")
    return stage.relinked(text, README, lambda named: f"{home.rstrip('/')}/{named}")


def built(home: str, out: Path) -> list[Path]:
    """
    Build both from the files that git knows, and return where they are.

    Raises:
        NotBuilt: This is no checkout of git, or the build failed; what it said.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "jitgen"
        for name in _tracked():
            source, target = stage.ROOT / name, copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.exists():  # it may just have been deleted
                shutil.copy2(source, target, follow_symlinks=False)
        (copy / README).write_text(readme(home), encoding="utf-8")
        command = [sys.executable, "-c", _BUILD, str(out.resolve())]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuilt(done.stderr.strip())
    return sorted([*out.glob("*.tar.gz"), *out.glob("*.whl")])


def _tracked() -> list[str]:
    command = ["git", "-C", str(stage.ROOT), "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuilt(f"a release is built from a checkout: {done.stderr.strip()}")
    return [name for name in done.stdout.split("\0") if name]
