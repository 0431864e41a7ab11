# SPDX-License-Identifier: Apache-2.0
"""What verifying keeps between runs: found again, never believed when damaged, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jitgen.codegen.render import Source
from jitgen.compile import compiler, inspect
from jitgen.config import Config
from jitgen.settings import settings
from jitgen.verify import artifacts, cached

CONFIG, ARCH = Config.parse(
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a"
)
SOURCE = Source(config=CONFIG, arch=ARCH, name="kernel", text="text = 1\n", entry="grouped_gemm")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with settings.scope(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache" / "v1" / "emulator"


def test_what_is_kept_is_found() -> None:
    assert cached.find("one") is None
    cached.store("one", b"content")
    assert cached.find("one") == b"content"


def test_what_was_changed_is_missing(folder: Path) -> None:
    cached.store("one", b"content")
    (folder / "one").write_bytes(b"another")

    assert cached.find("one") is None


@pytest.mark.parametrize("mode", ["off", "ro"])
def test_a_cache_that_is_not_written(mode: str, folder: Path) -> None:
    with settings.scope(cache=mode):
        cached.store("one", b"content")
        assert cached.find("one") is None
    assert not folder.exists()


def test_the_oldest_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached, "MOST_BYTES", 400)
    for name in "abcdef":
        cached.store(name, name.encode() * 50)  # and 64 of its digest

    assert cached.find("a") is None
    assert cached.find("f") == b"f" * 50
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 400


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was compiled."""
    done: list[str] = []

    def compile_source(source: Source, **_: Any) -> Any:
        done.append(source.text)
        why_private = "an odd linker" if "doubt" in source.text else ""
        files = {"kernel.so": b"\x7fELF " + source.text.encode()}
        return SimpleNamespace(
            library="kernel.so", files=files, ptx=f"// {source.text}", why_private=why_private
        )

    monkeypatch.setattr(compiler, "compile_source", compile_source)
    monkeypatch.setattr(inspect, "ptx", lambda source, **_: compile_source(source).ptx)
    return done


def test_a_kernel_is_compiled_once(compiles: list[str]) -> None:
    first, second = artifacts.compiled(SOURCE), artifacts.compiled(SOURCE)

    assert first == second
    assert (first.symbol, first.ptx) == ("kernel", f"// {SOURCE.text}")
    assert len(compiles) == 1


@pytest.mark.parametrize(
    ("changed", "times"),
    [({"text": "text = 2\n"}, 2), ({"name": "another"}, 2), ({"text": SOURCE.text}, 1)],
)
def test_whatever_it_depends_on_counts(
    compiles: list[str], changed: dict[str, str], times: int
) -> None:
    artifacts.compiled(SOURCE)
    artifacts.compiled(replace(SOURCE, **changed))

    assert len(compiles) == times


def test_a_damaged_one_is_compiled_again(compiles: list[str], folder: Path) -> None:
    good = artifacts.compiled(SOURCE)
    (path,) = folder.glob("*.so")
    path.write_bytes(b"evil")

    assert artifacts.compiled(SOURCE) == good
    assert len(compiles) == 2


def test_what_is_in_doubt_is_not_kept(compiles: list[str], folder: Path) -> None:
    doubtful = replace(SOURCE, text="doubt = 1\n")
    artifacts.compiled(doubtful)
    artifacts.compiled(doubtful)

    assert len(compiles) == 2
    assert not list(folder.glob("*.so"))
