# SPDX-License-Identifier: Apache-2.0
"""What jitgen lends the emulator: a place for the stub in its cache, its loader, its compiler."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitgen.compile import linker
from jitgen.emulator import compile_stub, stub_library
from jitgen.runtime import native
from jitgen.settings import settings
from jitgen.verify import host

NAME = "stub-0123"

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "cache"
    with settings.scope(cache_dir=root):
        yield root


def kept() -> bytes:
    return stub_library(host.HOST)


def test_the_stub_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept().startswith(b"\x7fELF")
    (path,) = (cache / "v1" / "emulator").glob("*.so")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("compiled again"))

    assert kept() == path.read_bytes()
    assert path.stat().st_mode & 0o022 == 0


def test_a_damaged_stub_is_compiled_again(cache: Path) -> None:
    kept()
    (path,) = (cache / "v1" / "emulator").glob("*.so")
    good = path.read_bytes()
    path.unlink()
    path.write_bytes(good[:-1] + b"x")

    kept()

    assert path.read_bytes() == good


@pytest.mark.parametrize("mode", ["off", "ro", "rw"])
def test_no_cache_is_no_obstacle(mode: str, cache_root: Path) -> None:
    """Where it may not, or cannot, be written, this process has a stub of its own, made once."""
    cache_root.write_text("no folder")
    made = []
    with settings.scope(cache=mode):
        content = host.cached(NAME, lambda: made.append(1) or compile_stub(host.HOST))

    assert content.startswith(b"\x7fELF")
    assert made == [1]


def test_a_kept_stub_is_loaded_from_the_bytes_that_were_checked(cache_root: Path) -> None:
    """The path was loaded before, and a file that was swapped in between was loaded."""
    first = kept()
    (path,) = (cache_root / "v1" / "emulator").glob("*.so")
    path.write_bytes(b"something else")

    assert kept() == first
    assert path.read_bytes() == first


def test_rules_of_jitgen_hold_for_the_emulator() -> None:
    """One rule of how native code is loaded, and of which compiler is taken."""
    assert host.HOST.load is native.load
    assert host.HOST.compiler is linker.driver


def test_the_stub_is_not_made_where_others_could_exchange_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was compiled and loaded below any TMPDIR, where others may be able to rename."""
    theirs = tmp_path / "tmp"
    theirs.mkdir()
    theirs.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(theirs))

    with settings.scope(cache="off"), host.HOST.folder() as folder:
        assert theirs not in folder.parents
    assert compile_stub(host.HOST).startswith(b"\x7fELF")
    assert list(theirs.iterdir()) == []
