# SPDX-License-Identifier: Apache-2.0
"""Compiling again what a cache holds: equal bytes, and what is said of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jitgen.cache import Entry, Store
from jitgen.cache.entry import LIBRARY, SOURCE, key_of
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.plans.prewarm import prewarm
from jitgen.plans.rebuild import Rebuilt, differences, rebuilt
from jitgen.runtime.spec import key
from tests.cli.conftest import Jitgen, jitgen

__all__ = ["jitgen"]

CONFIG = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=8, n=32, k=128))
NAME = CONFIG.name("cpu")


@pytest.fixture(scope="module")
def entry(kernel_root: Path) -> Entry:
    """An entry that jitgen compiled."""
    store = Store.open(kernel_root, mode="rw")
    assert prewarm([CONFIG], arch="cpu", store=store, jobs=1).ok
    found = store.read(key(CONFIG, Arch.parse("cpu")))
    assert found is not None
    return found


def changed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def test_the_command(entry: Entry, kernel_root: Path, cache_root: Path, jitgen: Jitgen) -> None:
    """A planted library, whose digests are right, is told from what the compiler makes."""
    store = Store.open(cache_root)
    store.publish(entry.meta, entry.files)
    good = jitgen(f"verify --rebuild {NAME} --json")
    store.remove(entry.key)
    files = {**entry.files, LIBRARY: changed(entry.library, len(entry.library) // 2)}
    assert store.publish(entry.meta, files).directory is not None
    bad = jitgen(f"verify --rebuild {entry.key[:12]} -j 1")

    assert good.code == 0
    assert [row["state"] for row in good.document["kernels"]] == ["same"]
    assert bad.code == 1
    assert bad.out.startswith("STATE")
    assert "OTHER  " in bad.out
    assert "1 kernel: 1 not the same in " in bad.err
    assert f"the first other one is at {len(entry.library) // 2}; other sections: " in bad.out
    assert jitgen("verify --rebuild deepseek-v3 --problem 1:2:3:4").code == 2
    store.remove(entry.key)
    gone = jitgen(f"verify --rebuild {NAME}")
    assert (gone.code, "holds no good entry" in gone.out) == (1, True)
    assert "1 kernel: 1 not compared in " in gone.err


def test_a_record_that_lies(entry: Entry) -> None:
    """What a record says beside digests is compared, too: a symbol says which code is called."""
    result = rebuilt(replace(entry.meta, symbol="a", name="b"), entry.files)

    assert result.differences == (
        f"meta.json: symbol is 'a', and compiling makes '{NAME}'",
        f"meta.json: name is 'b', and compiling makes '{NAME}'",
    )
    assert not result.is_same


def test_another_toolchain_is_told_and_nothing_compiled(entry: Entry) -> None:
    document = {**entry.meta.key_document, "toolchain": {"nvidia-cutlass-dsl": "4.7.0"}}
    meta = replace(entry.meta, key_document=document, key=key_of(document))
    result = rebuilt(meta, entry.files)

    assert not result.is_same
    assert "toolchain.nvidia-cutlass-dsl is '4.7.0' there and '" in result.error


def test_a_config_that_no_target_runs_is_refused(entry: Entry) -> None:
    """What a stranger's record says is checked like a user's config."""
    config = {**entry.meta.config, "tile": {"m": 5, "n": 32, "k": 128}}

    assert "E_TILE_M" in rebuilt(replace(entry.meta, config=config), entry.files).error


def test_differences_are_told_by_file() -> None:
    before = {SOURCE: b"a = 1\nb = 2\n", LIBRARY: b"no ELF", "old": b""}
    after = {SOURCE: b"a = 1\nb = 3\n", LIBRARY: b"no elf!", "new": b""}

    assert list(differences(before, before)) == []
    assert list(differences(before, after)) == [
        "kernel.py: line 2 is 'b = 2', and is rendered as 'b = 3'",
        "kernel.so: 6 bytes, compiled anew 7; the first other one is at 3",
        "new: compiling makes one, and the entry has none",
        "old: it is in the entry, and compiling makes none",
    ]


def test_json_says_all() -> None:
    row = Rebuilt(key="k", name="n", error="no compiler")

    assert row.to_json() == {
        "key": "k",
        "name": "n",
        "same": False,
        "differences": [],
        "error": "no compiler",
    }
