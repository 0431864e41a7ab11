# SPDX-License-Identifier: Apache-2.0
"""Sessions: settings and stores of their own, for the code inside only."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import jitgen
from jitgen.errors import SettingError
from jitgen.runtime.session import DEFAULT, current


def test_inside_and_outside(tmp_path: Path) -> None:
    with jitgen.Session(cache_dir=tmp_path / "own", on_miss="error") as session:
        assert current.get() is session
        assert session.store.root == tmp_path / "own"
        assert jitgen.settings.on_miss == "error"

    assert current.get() is DEFAULT
    assert DEFAULT.store.root != tmp_path / "own"
    assert jitgen.settings.on_miss == "compile"


def test_settings_are_checked_when_it_is_made() -> None:
    with pytest.raises(SettingError, match="on_miss='perhaps' is not allowed"):
        jitgen.Session(on_miss="perhaps")
    with pytest.raises(SettingError, match="no setting 'folder'"):
        jitgen.Session(folder="/tmp")


def test_threads_leave_one_session_in_any_order(tmp_path: Path) -> None:
    """Who entered first leaves first; each leaves what it entered itself."""
    session = jitgen.Session(cache_dir=tmp_path / "own")
    entered, left, wrong = threading.Event(), threading.Event(), []

    def first() -> None:
        try:
            with session:
                entered.wait(10)
            assert current.get() is DEFAULT
        except Exception as error:  # told below: a thread's own would be lost
            wrong.append(error)
        left.set()

    thread = threading.Thread(target=first)
    thread.start()
    with session:
        entered.set()
        assert left.wait(10)
        assert current.get() is session
    thread.join()

    assert current.get() is DEFAULT
    assert not wrong


def test_one_inside_another(tmp_path: Path) -> None:
    outer, inner = jitgen.Session(on_miss="error"), jitgen.Session(cache="off")
    with outer, inner, outer:
        assert current.get() is outer
        assert (jitgen.settings.on_miss, jitgen.settings.cache) == ("error", "rw")

    assert current.get() is DEFAULT
