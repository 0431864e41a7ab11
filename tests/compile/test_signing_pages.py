# SPDX-License-Identifier: Apache-2.0
"""
The beginnings of the pages about signing, bundles and the service, as a reader types them in: one
line after the other, in a shell with no file and no variable but those that the pages make.

`test_documented_commands.py` runs the other lines one by one, with everything that they need.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import documents, needs

pytest.importorskip("cryptography", reason="needs jitgen[signing]")
pytest.importorskip("zstandard", reason="needs jitgen[remote]")
pytest.importorskip("uvicorn", reason="needs jitgen[server]")
pytestmark = [needs.compiler, needs.linker, pytest.mark.nightly]

PLAN = documents.blocks("docs/tutorial-serving.md", "toml")[0]


def _typed(page: str, first: str, last: str) -> list[str]:
    """Return the commands of a page from the line with `first` to the one with `last`."""
    found = [line.strip().removeprefix("$ ") for line in documents.copied_lines(page)]
    found = [line for line in found if re.match(r"(export|jitgen|install|[A-Z_]+=\S+) ", line)]
    starts = next(i for i, line in enumerate(found) if first in line)
    ends = next(i for i, line in enumerate(found) if i >= starts and last in line)
    return found[starts : ends + 1]


def _run(lines: list[str], place: Path, **replaced: str) -> str:
    """Run lines in one shell that stops at the first failure; return what they print."""
    command = place / "bin" / "jitgen"
    if not command.exists():
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m jitgen "$@"\n', encoding="utf-8")
        command.chmod(0o755)
        (place / "etc").mkdir()
        (place / "bucket").mkdir()
        (place / "service.toml").write_text(PLAN, encoding="utf-8")
    script = "\n".join(["set -ex", *lines])
    every = {
        r"/etc/jitgen": f"{place}/etc",
        r"s3://kernels/fleet": f"file://{place}/bucket",
        r"deepseek-v3 --arch \S+": "service.toml --arch cpu",
    }
    for pattern, by in (every | replaced).items():
        script = re.sub(pattern, by, script)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place,
        env={
            "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
            "HOME": str(place),
            "PYTHONPATH": str(documents.ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def _install_document(place: Path) -> None:
    """What a reader is told to do by hand: the document, and no key, on all machines."""
    (place / "etc" / "trust.json").write_bytes((place / "trust.json").read_bytes())


def test_a_bucket_and_a_bundle_of_signed_kernels(tmp_path: Path) -> None:
    """docs/signing.md makes the key and the document that docs/bundles.md goes on with."""
    public = {r"'nXTS\.\.\.='": '"$(jitgen trust public ci.pem)"'}
    lines = _typed("docs/signing.md", "JITGEN_TRUST", "cache push")
    _run(lines, tmp_path, **public)
    _install_document(tmp_path)
    said = _run(_typed("docs/signing.md", "JITGEN_REMOTE", "doctor"), tmp_path)
    assert "answers in" in said

    key = {r"build\.pem": "ci.pem"}
    _run(_typed("docs/bundles.md", "prewarm", "bundle export"), tmp_path, **key)
    said = _run(
        [
            f"export JITGEN_CACHE_DIR={tmp_path}/other",
            *_typed("docs/bundles.md", "export JITGEN_TRUST", "bundle import"),
        ],
        tmp_path,
    )

    assert said.count("imported") == 3


def test_a_service_that_signs(tmp_path: Path) -> None:
    """Its settings are those of the page, but for TLS, which wants a certificate."""
    (written,) = re.findall(r"^    \[listen\]\n(?:    .*\n|\n(?=    ))*", _service(), re.MULTILINE)
    public = {r"'nXTS\.\.\.='": f'"$(jitgen trust public {tmp_path}/etc/signing.pem)"'}
    _run(["jitgen token pods --scopes read,compile > tokens"], tmp_path)
    (tmp_path / "etc/tokens.toml").write_text(
        "[[token]]" + (tmp_path / "tokens").read_text("utf-8").partition("[[token]]")[2], "utf-8"
    )
    settings = re.sub("^    |certificate.*\n", "", written, flags=re.MULTILINE)
    settings = re.sub(r"(?<=host = ).*", '"127.0.0.1"', settings)
    settings = settings.replace("/etc/jitgen", f"{tmp_path}/etc")
    settings = settings.replace("/var/lib/jitgen", f"{tmp_path}/var")
    lines = _typed("docs/service.md", "export JITGEN_TRUST", "install")
    _run(lines, tmp_path, **public)
    (tmp_path / "etc/service.toml").write_text(settings, encoding="utf-8")
    said = _run(_typed("docs/service.md", "--check-config", "--check-config"), tmp_path)

    assert "service.toml is right" in said
    assert "warning" not in said


def _service() -> str:
    return documents.text("docs/service.md")
