# SPDX-License-Identifier: Apache-2.0
"""`jitgen cache`: look, check, clean."""

from __future__ import annotations

import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from jitgen.bench.processes import fabricate
from jitgen.cache import Store
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime.spec import document as key_document
from jitgen.runtime.spec import key
from tests.cli.conftest import Jitgen
from tests.unit.store_fakes import publish

CONFIG = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=128, n=128, k=128))
NAME = CONFIG.name(Arch.SM_90A)


@pytest.fixture
def keys(cache_root: Path) -> list[str]:
    """The keys of three entries that are in the cache."""
    fabricate(cache_root, 3)
    return sorted(info.key for info in Store.open().entries())


def left() -> list[str]:
    return sorted(info.key for info in Store.open().entries())


def test_dir_prints_the_root_and_creates_nothing(jitgen: Jitgen, cache_root: Path) -> None:
    done = jitgen("cache", "dir")

    assert done.out == f"{cache_root}\n"
    assert jitgen("cache", "dir", "--json").document["origin"] == "environment"
    assert not cache_root.exists()


def test_ls_of_an_empty_cache(jitgen: Jitgen) -> None:
    done = jitgen("cache", "ls")

    assert (done.code, done.out) == (0, "")
    assert "0 entries" in done.err


def test_ls_says_which_base_is_not_read(
    jitgen: Jitgen, keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said of a base that is not there that it had no entries, and was only read."""
    base, none = tmp_path / "cache", tmp_path / "none"
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(tmp_path / "upper"))
    monkeypatch.setenv("JITGEN_BASE", f"{base}:{none}")
    notes = jitgen("cache", "ls").err.splitlines()

    assert f"not read: {none}, there is no such folder" in notes
    read = [line for line in notes if line.endswith("which is only read")]
    assert len(read) == 1
    assert read[0].startswith(f"{len(keys)} entries")


@pytest.mark.parametrize("command", ["ls", "ls --failures", "stats", "explain 0123"])
@pytest.mark.parametrize("below", ["", "v1"])
def test_a_root_that_is_no_folder(
    jitgen: Jitgen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, below: str
) -> None:
    """It was a cache without entries, with exit code 0."""
    file = tmp_path / "kernels.tar"
    file.touch()
    monkeypatch.setenv("JITGEN_CACHE_DIR", str(file / below))
    done = jitgen(f"cache {command}")

    assert done.code != 0
    assert f"{file} is no folder, and a cache is one: set JITGEN_CACHE_DIR" in done.err


def test_ls(jitgen: Jitgen, keys: list[str]) -> None:
    done = jitgen("cache", "ls")
    entries = jitgen("cache", "ls", "--json").document["entries"]

    assert len(done.out.splitlines()) == 4
    assert done.out.count(NAME) == 3
    assert re.match(r"3 entries, \d+ B, in /", done.err)
    assert sorted(entry["key"] for entry in entries) == keys
    assert {entry["name"] for entry in entries} == {NAME}
    assert all(
        entry["size_bytes"] > 0 and entry["last_use"].endswith("+00:00") for entry in entries
    )
    assert jitgen("cache", "ls", "--arch", "cpu", "--json").document["entries"] == []


@pytest.mark.parametrize("order", ["name", "size", "used", "hits"])
def test_ls_sorts(jitgen: Jitgen, keys: list[str], order: str) -> None:
    assert len(jitgen("cache", "ls", "--sort", order, "--json").document["entries"]) == len(keys)


def test_stats(jitgen: Jitgen, keys: list[str]) -> None:
    document = jitgen("cache", "stats", "--json").document

    assert document["entries"] == 3
    assert document["by_arch"] == {"sm_90a": 3}
    assert "entries      3\n" in jitgen("cache", "stats").out


def test_failures_are_listed_and_forgotten(jitgen: Jitgen, cache_root: Path) -> None:
    name = key(CONFIG, Arch.SM_90A)
    store = Store.open()
    store.index.remember_failure(name, NAME, "no registers left", 1000)
    store.index.close()

    failures = jitgen("cache", "ls", "--failures", "--json").document["failures"]
    assert [(failure["key"], failure["reason"]) for failure in failures] == [
        (name, "no registers left")
    ]
    assert "no registers left" in jitgen("cache", "ls", "--failures").out
    assert jitgen("cache", "explain", NAME, "--json").document["state"] == "failed"
    assert jitgen("cache", "rm", name[:8]).code == 0
    assert jitgen("cache", "ls", "--failures", "--json").document["failures"] == []


def test_explain_a_miss_field_by_field(jitgen: Jitgen, keys: list[str]) -> None:
    done = jitgen("cache", "explain", NAME)
    document = jitgen("cache", "explain", NAME, "--limit", "1", "--json").document

    assert done.code == 0
    assert "no entry has this key" in done.out
    assert document["state"] == "miss"
    fields = {item["field"] for item in document["nearest"][0]["differences"]}
    assert {"templates", "number"} <= fields
    assert "config.tile.m" not in fields


def test_explain_an_entry_that_the_toolchain_has_left_behind(
    jitgen: Jitgen, keys: list[str]
) -> None:
    document = jitgen("cache", "explain", keys[0][:10], "--json").document

    assert [item["key"] for item in document["nearest"]] == [keys[0]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"toolchain": {"nvidia-cutlass-dsl-libs-cu14": "4.8.1"}}, "make different code"),
        ({"host": "linux-x86_64-v9"}, "compiled for hosts linux-x86_64-v9, and this one is linux"),
        ({"options": []}, ""),
    ],
)
def test_explain_says_what_a_difference_means(
    jitgen: Jitgen, change: dict[str, Any], words: str
) -> None:
    """That libs-cu12 is (absent) tells no user that there are two code generators."""
    document = key_document(CONFIG, Arch.SM_90A)
    publish(Store.open(), 1, key_document=document | change)
    (nearest,) = jitgen("cache", "explain", NAME, "--json").document["nearest"]

    assert [words in meaning for meaning in nearest["meanings"]] == [True] * bool(words)
    assert words in jitgen("cache", "explain", NAME).err


def test_explain_a_refused_config(jitgen: Jitgen) -> None:
    name = NAME.replace("t128x128", "t256x192")

    assert jitgen("cache", "explain", name, "--json").document["state"] == "refused"


def test_verify(jitgen: Jitgen, keys: list[str], cache_root: Path) -> None:
    assert jitgen("cache", "verify").code == 0
    victim = cache_root / "v1" / "entries" / keys[0][:2] / keys[0] / "kernel.so"
    victim.write_bytes(b"\x7fELG")

    dry = jitgen("cache", "verify", "--dry-run", "--json")
    assert (dry.code, len(left())) == (1, 3)
    assert dry.document["damaged"][0]["key"] == keys[0]
    done = jitgen("cache", "verify")
    assert done.code == 1
    assert keys[0][:12] in done.out
    assert "1 damaged, moved to the quarantine" in done.err
    assert left() == keys[1:]
    assert jitgen("cache", "verify", "--rebuild").code == 0


def test_prune_says_what_it_would_do_first(jitgen: Jitgen, keys: list[str]) -> None:
    dry = jitgen("cache", "prune", "--size", "1", "--dry-run", "--json").document

    assert dry["dry_run"]
    assert left() == keys  # published less than a minute ago: spared, in a dry run too
    assert jitgen("cache", "prune", "--size", "1GiB", "--json").document["removed"] == []
    assert "0 entries" in jitgen("cache", "prune").err


def test_rm(jitgen: Jitgen, keys: list[str]) -> None:
    dry = jitgen("cache", "rm", keys[0], "--dry-run")
    assert (dry.code, dry.out) == (0, f"would remove {keys[0][:12]} {NAME}\n")
    assert left() == keys

    done = jitgen("cache", "rm", keys[0][:16], keys[1], "--json")
    assert [item["key"] for item in done.document["removed"]] == keys[:2]
    assert left() == keys[2:]


def test_rm_of_something_that_is_not_there(jitgen: Jitgen, keys: list[str]) -> None:
    unknown = jitgen("cache", "rm", "0123456789")
    assert (unknown.code, unknown.out) == (2, "")
    assert "no entry" in unknown.err

    by_name = jitgen("cache", "rm", NAME)  # a good name whose key is not in the cache
    assert by_name.code == 1
    assert by_name.err.startswith("warning: no entry")
    assert left() == keys


def test_keys_must_be_long_enough_and_unique(jitgen: Jitgen, cache_root: Path) -> None:
    fabricate(cache_root, 600)
    every = left()
    first = next(a[:4] for a, b in itertools.pairwise(every) if a[:4] == b[:4])

    assert "too short" in jitgen("cache", "rm", every[0][:3]).err
    ambiguous = jitgen("cache", "rm", first)
    assert ambiguous.code == 2
    assert f"keys start with {first}" in ambiguous.err


def test_clear_does_not_ask_without_a_terminal(jitgen: Jitgen, keys: list[str]) -> None:
    refused = jitgen("cache", "clear")
    assert refused.code == 2
    assert "add --yes" in refused.err
    assert "would remove 3 entries" in jitgen("cache", "clear", "--dry-run").out
    assert left() == keys

    done = jitgen("cache", "clear", "--yes", "--json")
    assert done.document["removed"] == 3
    assert left() == []


@pytest.mark.parametrize(("answer", "code", "count"), [("n\n", 1, 3), ("y\n", 0, 0)])
def test_clear_asks_at_a_terminal(
    jitgen: Jitgen,
    keys: list[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    count: int,
) -> None:
    class Person(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Person(answer))

    assert jitgen("cache", "clear").code == code
    assert len(left()) == count


def test_pins(jitgen: Jitgen, keys: list[str]) -> None:
    assert jitgen("cache", "pin", keys[0], keys[1]).code == 0
    assert jitgen("cache", "stats", "--json").document["pinned"] == 2
    assert jitgen("cache", "unpin", keys[0][:8], "--json").document["keys"] == [keys[0]]
    assert jitgen("cache", "stats", "--json").document["pinned"] == 1


@pytest.mark.parametrize("words", ["rm 0123abcd", "clear --yes", "prune", "pin 0123abcd"])
def test_a_read_only_cache_is_not_changed(
    jitgen: Jitgen, keys: list[str], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("JITGEN_CACHE", "ro")
    done = jitgen("cache", *words.split())

    assert done.code == 1
    assert done.err == "error: the cache may not be changed: JITGEN_CACHE=ro\n"
    assert left() == keys


def test_a_cache_that_is_off_is_empty(
    jitgen: Jitgen, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEN_CACHE", "off")

    assert jitgen("cache", "ls", "--json").document["entries"] == []
    assert jitgen("cache", "stats").code == 0


def test_documents_are_json_to_the_last_byte(jitgen: Jitgen, keys: list[str]) -> None:
    for words in ("dir", "ls", "stats", "verify", "prune", "clear --yes"):
        done = jitgen("cache", *words.split(), "--json")
        assert json.loads(done.out)["command"] == f"cache {words.split()[0]}"
