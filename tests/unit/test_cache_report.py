# SPDX-License-Identifier: Apache-2.0
"""The page of a cache: what calls find, why not the rest, and that nothing gets in."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from jitgen.cache import Meta, Store
from jitgen.cache.entry import key_of
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.inspect import cache_page
from jitgen.inspect.cache_page import cache_page as page_of
from jitgen.inspect.cache_report import State, report
from jitgen.runtime import spec
from tests.inspect_pages import EVIL, Page
from tests.unit.store_fakes import age, fake_files, fake_meta, folder_of, publish

CONFIG = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=16, n=64, k=128))


@pytest.fixture
def store(cache_root: Path) -> Store:
    return Store.open(cache_root)


def meta(**changes: object) -> Meta:
    """Return the record of a kernel that calls look for, with `changes` of its key document."""
    document = spec.document(CONFIG, Arch.CPU) | changes
    return fake_meta(
        1,
        key=key_of(document),
        key_document=document,
        name=CONFIG.name("cpu"),
        config=CONFIG.to_json(),
        host_isa=(),
    )


def test_what_calls_find_and_why_not_the_rest(store: Store) -> None:
    """Each reason in words: what calls look for instead."""
    other = dict(spec.document(CONFIG, Arch.CPU)["toolchain"]) | {"nvidia-cutlass-dsl": "4.7.0"}
    refused = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=5, n=64, k=128))
    for number, each in enumerate(
        (meta(), meta(templates="ab" * 32), meta(toolchain=other), meta(options=[EVIL]))
    ):
        store.publish(each, fake_files(number))
    publish(store, 7, name=refused.name("cpu"))
    publish(store, 8)  # the name of no kernel
    found = report(store)

    assert found.states == {State.FOUND: 1, State.OTHER: 3, State.REFUSED: 1, State.UNKNOWN: 1}
    reasons = " ".join(found.reasons)
    assert "calls look for other templates" in reasons
    here = version("nvidia-cutlass-dsl")
    assert f"calls look for nvidia-cutlass-dsl {here} instead of 4.7.0" in reasons
    assert "E_TILE_M: the rules of cpu refuse its config now" in reasons
    assert "a plugin may be missing" in reasons


def test_a_cpu_that_lacks_something(store: Store) -> None:
    from dataclasses import replace

    store.publish(replace(meta(), host_isa=("x86-64-v9",)), fake_files(1))
    (row,) = report(store).rows

    assert (row.state, row.reason) == (
        State.CPU,
        "its host part needs x86-64-v9, which this CPU lacks",
    )


def test_damage_and_failures_are_told(store: Store) -> None:
    entry = publish(store, 1)
    (folder_of(entry) / "meta.json").write_text("{}")
    store.index.remember_failure("ab" * 32, EVIL, EVIL, 3600)
    found = report(store)
    read = Page(page_of(found))
    read.check()

    assert found.states == {State.DAMAGED: 1}
    assert "its record cannot be read" in read.words
    assert read.words.count("<img src=x onerror=alert(1)>") >= 2


def test_hostile_entries_stay_texts(store: Store) -> None:
    """An index, and records of others, may say anything."""
    for number in range(3):
        publish(store, number, name=f"{EVIL}{number}", created=EVIL)
    read = Page(page_of(report(store)))
    read.check()

    assert read.words.count("<img src=x onerror=alert(1)>") >= 3


def test_an_empty_cache_has_a_page(store: Store) -> None:
    read = Page(page_of(report(store)))
    read.check()

    assert "Calls find every entry." in read.words


def test_a_page_has_the_entries_that_were_used_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_page, "MOST_ROWS", 2)
    for number in range(4):
        age(publish(store, number), 1000.0 * number)
    read = Page(page_of(report(store)))

    assert [f"_t{number}x128" in read.words for number in range(4)] == [True, True, False, False]
    assert "2 more, which were used longer ago, are not shown." in read.words
