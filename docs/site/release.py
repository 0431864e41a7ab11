# SPDX-License-Identifier: Apache-2.0
"""
What a release consists of: a source distribution, a wheel, and what `docs.site.provenance` writes.

An index shows the README alone, so that its relative links would lead nowhere. They are rewritten
in a copy of the tree, from which both are built by `release/backend.py`; no network is asked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from docs.site import provenance, stage
from jitgen.signing.keys import PrivateKey

README = "README.md"

_BUILD = """\
import sys
sys.path.insert(0, "release")
import backend
out = sys.argv[1]  # setuptools puts words of its own there
backend.build_sdist(out)
backend.build_wheel(out)
"""


class NotBuilt(Exception):
    """There is no checkout to build from, or setuptools is too old or failed."""


def readme(home: str) -> str:
    """Return the README with absolute links, to the files of this version below `home`, a URL."""
    text = (stage.ROOT / README).read_text(encoding="utf-8")
    return stage.relinked(text, README, lambda named: f"{home.rstrip('/')}/{named}")


def built(home: str, out: Path, key: PrivateKey | None = None) -> list[Path]:
    """
    Build all files of a release from the files that git knows, and return where they are.

    Args:
        home: Where a browser finds the files of this version.
        out: The folder for them.
        key: The key that signs the provenance; None: it is not signed.

    Raises:
        NotBuilt: This is no checkout of git, setuptools is missing or too old, or the build failed;
            what it said.
    """
    _check_setuptools()
    commit, time = _git("log", "-1", "--format=%H %ct").split()
    at = os.environ.get("SOURCE_DATE_EPOCH") or time
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
        environment = os.environ | {"SOURCE_DATE_EPOCH": at}
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise NotBuilt(done.stderr.strip())
    files = sorted([*out.glob("*.tar.gz"), *out.glob("*.whl")])
    return [*files, *provenance.write(out, files, commit, int(at), home, key)]


def _check_setuptools() -> None:
    """Refuse a setuptools older than `pyproject.toml` asks for, as new environments may have."""
    project = tomllib.loads((stage.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (required,) = project["build-system"]["requires"]
    least = int(required.removeprefix("setuptools>="))
    try:
        found = version("setuptools")
    except PackageNotFoundError:
        found = "none"
    if found == "none" or int(found.partition(".")[0]) < least:
        raise NotBuilt(
            f"a release is built with setuptools {least} or newer, and this environment has "
            f"{found}: pip install '{required}'"
        )


def _tracked() -> list[str]:
    return [name for name in _git("ls-files", "-z").split("\0") if name]


def _git(*words: str) -> str:
    command = ["git", "-C", str(stage.ROOT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotBuilt(f"a release is built from a checkout: {done.stderr.strip()}")
    return done.stdout
