# SPDX-License-Identifier: Apache-2.0
"""What a package index gets: sources with tests and documentation, a README with good links."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from docs.site import release, stage
from tests import documents

HOME = "https://example.org/jitgen/blob/v0"
FOLDERS = ("docs", "examples", "tests", ".ci")
ALONE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "constraints.txt")


def _wanted() -> list[str]:
    """Return the files that the source distribution must hold besides the package."""
    found = [
        path.relative_to(documents.ROOT).as_posix()
        for folder in FOLDERS
        for path in (documents.ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return [*found, *ALONE]


def test_the_sources_hold_tests_and_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    """MANIFEST.in, as setuptools reads it."""
    from setuptools.command.egg_info import FileList

    monkeypatch.chdir(documents.ROOT)
    files = FileList()
    for line in documents.text("MANIFEST.in").splitlines():
        if line and not line.startswith("#"):
            files.process_template_line(line)
    listed = {Path(name).as_posix() for name in files.files}

    assert set(_wanted()) - listed == set()
    assert not any("__pycache__" in name for name in listed)


def test_no_link_of_the_readme_is_relative() -> None:
    if "](docs/install.md)" not in (stage.ROOT / release.README).read_text(encoding="utf-8"):
        pytest.skip("the README of a source distribution is one already")
    text = release.readme(HOME)

    assert f"]({HOME}/docs/install.md)" in text
    assert f"]({HOME}/examples)" in text
    assert [found[2] for found in stage.LINK.finditer(text)] == []


@pytest.mark.nightly
def test_both_are_built(tmp_path: Path) -> None:
    """Without a network, by one command; the README of both is the rewritten one."""
    command = [sys.executable, "-m", "docs.site", "dist", "--home", HOME, "-o", str(tmp_path)]
    done = subprocess.run(command, cwd=documents.ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    (sources,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = set(release._tracked())

    assert {name for name in _wanted() if name in tracked} <= names
    with zipfile.ZipFile(wheel) as packed:
        (place,) = (name for name in packed.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(packed.read(place))
        tops = {name.partition("/")[0] for name in packed.namelist()}
    assert f"]({HOME}/docs/install.md)" in metadata.get_payload()
    assert {top for top in tops if not top.endswith(".dist-info")} == {"jitgen"}


def test_home_must_be_a_url(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from docs.site.__main__ import main

    result = CliRunner().invoke(main, ["dist", "--home", "here", "-o", str(tmp_path)])

    assert result.exit_code == 2
    assert "https://" in result.output
