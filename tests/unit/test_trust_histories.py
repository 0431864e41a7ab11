# SPDX-License-Identifier: Apache-2.0
"""
Random histories: never an accepted revoked key, never a later document that is lost.

A push has some, the night 2,000: `python -m pytest -m nightly -s tests/unit/
test_trust_histories.py` prints what happened in them.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from jitgen.cache import trusted

from .trust_world import World


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process looks each time, where else it would once in a minute; no disk is waited for."""
    monkeypatch.setattr(trusted, "FRESH_S", -1.0)
    monkeypatch.setattr("jitgen.cache.remembered._PATIENCE_S", 0.1)
    monkeypatch.setattr("os.fsync", lambda _: None)


def _run(folder: Path, seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir(mode=0o700)
        try:
            counts += World(place, seed).run()
            shutil.rmtree(place)
        except BaseException as error:
            error.add_note(f"in the history of seed {seed}")
            raise
    return counts


_HAPPENS = (
    *("in use", "refused", "taken", "not taken", "errors met", "killed", "adopted"),
    *("taken in a race", "restart", "configure", "damage", "lose_power", "change_mode"),
)


def test_some_histories(tmp_path: Path) -> None:
    found = _run(tmp_path, range(8))

    assert all(found[what] for what in _HAPPENS), found


@pytest.mark.nightly
def test_two_thousand_histories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _run(tmp_path, range(1000, 3000))

    assert all(found[what] > 200 for what in _HAPPENS), found
    with capsys.disabled():
        print()
        for what, count in sorted(found.items()):
            print(f"{what:14} {count:6}")
