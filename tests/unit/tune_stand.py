# SPDX-License-Identifier: Apache-2.0
"""Tuning without kernels: what the worker process does is scripted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from jitgen.model import Arch, KernelConfig, Layout, Problem
from jitgen.runtime import prewarm as compiling
from jitgen.runtime.key import key
from jitgen.select import select

TRIALS = "tests.unit.fake_trials:Trials"
SMALL = Problem(layout=Layout.RAGGED, groups=2, m=16, n=64, k=64)
LARGE = replace(SMALL, m=128)
NAMES = [c.config.name("cpu") for c in select(SMALL, "cpu", use_measured=False).candidates]


class Stand:
    """The script of the fake trials, and what they were asked to do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.script()

    def script(self, **actions: Any) -> None:
        """Say what to do; ``prove_0="hang"`` stands for the model's first candidate."""
        actions = {_key(name): action for name, action in actions.items()}
        (self._folder / "script.json").write_text(json.dumps(actions))
        (self._folder / "calls").write_text("")

    @property
    def calls(self) -> list[str]:
        """What was done since, ``METHOD NAME``, with candidates by their numbers."""
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
    configs: list[KernelConfig], *, arch: Arch, dry_run: bool, **_: Any
) -> compiling.Report:
    """Return what prewarming says where every kernel is in the cache."""
    rows = tuple(
        compiling.Row(
            config=config,
            name=config.name(arch),
            key=key(config, arch),
            state=compiling.State.CACHED,
        )
        for config in configs
    )
    return compiling.Report(arch=arch, rows=rows, wall_s=0, jobs=0)
