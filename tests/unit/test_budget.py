# SPDX-License-Identifier: Apache-2.0
"""JITGEN_MAX_KERNELS: an explosion of kernels is told when it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen.cache import Store
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.errors import KernelMiss
from jitgen.events import Event, EventKind
from jitgen.runtime.budget import beyond, varied
from jitgen.runtime.session import current
from jitgen.runtime.spec import spec_of
from jitgen.settings import settings
from tests.unit.store_fakes import fake_files, fake_meta

CPU = Arch.parse("cpu")


def config(rows: int) -> GroupedGemmConfig:
    return GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=rows, n=32, k=128))


def ask(*rows: int) -> list[Event]:
    """Ask for kernels that were not compiled; returns the messages about the budget."""
    heard: list[Event] = []
    stop = jitgen.on_event(heard.append)
    with settings.scope(on_miss="error"):
        for number in rows:
            with pytest.raises(KernelMiss):
                jitgen.get_kernel(config(number), "cpu")
    stop()
    return [event for event in heard if event.kind is EventKind.BUDGET]


def test_the_first_one_beyond_warns_and_each_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JITGEN_MAX_KERNELS", "2")

    assert ask(8, 16, 8) == []
    assert caplog.text == ""
    told = ask(32, 32, 64)
    assert [event.kernel for event in told] == [config(32).name("cpu"), config(64).name("cpu")]
    assert told[1].detail == "4 distinct kernels, JITGEN_MAX_KERNELS=2"
    (warning,) = caplog.messages
    assert "asks for 3 distinct kernels, JITGEN_MAX_KERNELS=2" in warning
    assert "tile.m has 3 values" in warning


def test_without_a_limit_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert ask(8, 16, 32, 64) == []
    assert caplog.text == ""


def test_a_session_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEN_MAX_KERNELS", "1")
    ask(8)
    current.get().reset()

    assert ask(16) == []


def test_what_the_store_holds_was_foreseen(cache_root: Path) -> None:
    """Of a plan that is too large, the new kernels are those to look at."""
    store = Store.open()
    configs = [config(rows) for rows in (8, 16, 32)]
    spec = spec_of(configs[2], CPU)
    meta = fake_meta(1, key=spec.key, key_document=spec.document, name=spec.name, host_isa=())
    store.publish(meta, fake_files(1))
    pairs = [(each, CPU) for each in configs]

    assert beyond(pairs, store, 1) == (pairs[0], pairs[1])
    assert beyond(pairs, store, 3) == ()
    assert beyond(pairs, store, 0) == ()


def test_fields_that_vary_most_come_first() -> None:
    configs: list[Any] = [config(rows) for rows in (8, 16, 32)]

    assert varied(configs).startswith("tile.m has 3 values, ")
