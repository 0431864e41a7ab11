# SPDX-License-Identifier: Apache-2.0
"""Tuning without kernels: what the worker process does is scripted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen.autotune import TuningReport, bench, tune
from jitgen.cache import Store
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.plans import prewarm as compiling
from jitgen.runtime.session import select
from jitgen.runtime.spec import key
from jitgen.selection import measurements as tuned
from tests.unit.fake_trials import VARIABLE

TRIALS = "tests.unit.fake_trials:Trials"
SMALL = GroupedGemmProblem(layout=Layout.RAGGED, groups=2, m=16, n=64, k=64)
LARGE = replace(SMALL, m=128)
LIMIT_S = 1.0
NAMES = [c.config.name("cpu") for c in select(SMALL, "cpu", use_measured=False).candidates]


class Stand:
    """The script of the fake trials, and what they were asked to do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.script()

    def script(self, **actions: Any) -> None:
        """
        Set the script of the fake trials; ``verify_0="hang"`` stands for the model's first
        candidate.
        """
        actions = {_key(name): action for name, action in actions.items()}
        (self._folder / "script.json").write_text(json.dumps(actions))
        (self._folder / "calls").write_text("")

    @property
    def calls(self) -> list[str]:
        """The calls since the script was set, ``METHOD NAME``, with candidates by their numbers."""
        text = (self._folder / "calls").read_text()
        for number, name in enumerate(NAMES):
            text = text.replace(name, str(number))
        return [line.partition(" ")[2] for line in text.splitlines()]

    @property
    def processes(self) -> list[int]:
        """The processes that did it, in order."""
        lines = (self._folder / "calls").read_text().splitlines()
        return list(dict.fromkeys(int(line.split()[0]) for line in lines))


def _key(name: str) -> str:
    method, _, what = name.partition("_")
    return f"{method} {NAMES[int(what)] if what.isdecimal() and method != 'open' else what}".strip()


def compiled(
    configs: list[GroupedGemmConfig], *, arch: Arch, dry_run: bool, **_: Any
) -> compiling.PrewarmReport:
    """Return the report of prewarming if every kernel is in the cache."""
    rows = tuple(
        compiling.PrewarmRow(
            config=config,
            name=config.name(arch),
            key=key(config, arch),
            state=compiling.PrewarmState.CACHED,
        )
        for config in configs
    )
    return compiling.PrewarmReport(arch=arch, rows=rows, wall_s=0, jobs=0)


def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Have everything measured by what the returned stand says, and nothing compiled."""
    monkeypatch.setattr(bench, "TRIALS", TRIALS)
    monkeypatch.setattr(compiling, "prewarm", compiled)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return Stand(tmp_path)


def run(*problems: GroupedGemmProblem, **options: Any) -> TuningReport:
    return tune(problems or (SMALL,), arch="cpu", time_limit_s=LIMIT_S, **options)


def exclusions() -> dict[int, str]:
    """Return why kernels are excluded, by their places in the menu."""
    found = tuned.exclusions(Store.open(), Arch.CPU)
    return {NAMES.index(name): reason for name, reason in found.items()}


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"
