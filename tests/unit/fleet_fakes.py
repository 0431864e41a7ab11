# SPDX-License-Identifier: Apache-2.0
"""A job's store, and compile processes that compile nothing, for the tests of fleets."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jitgen.cache import Meta, Store
from jitgen.compile.workers import Outcome, OutcomeKind
from jitgen.config import Arch, Config, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime.spec import KernelSpec, spec_of
from tests.unit.store_fakes import fake_files, fake_meta

CPU = Arch.parse("cpu")


def configs(number: int) -> list[GroupedGemmConfig]:
    """Return `number` configs of cpu."""
    tiles = [(m, n) for m in (8, 16, 32, 64) for n in (32, 64, 128)]
    return [GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=m, n=n, k=128)) for m, n in tiles][
        :number
    ]


def record(spec: KernelSpec) -> Meta:
    """Return the record of a kernel that was not compiled."""
    return fake_meta(
        1,
        key=spec.key,
        key_document=spec.document,
        name=spec.name,
        arch=str(spec.arch),
        config=spec.config.to_json(),
        host_isa=(),
    )


class JobStore:
    """What `torch.distributed.Store` does, between threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self.is_gone = False

    def _check(self) -> None:
        if self.is_gone:
            raise RuntimeError("Connection reset by peer")

    def get(self, key: str, /) -> bytes:
        self._check()
        return self._values[key]

    def set(self, key: str, value: str | bytes, /) -> None:
        self._check()
        self._values[key] = value.encode() if isinstance(value, str) else value

    def check(self, keys: list[str], /) -> bool:
        self._check()
        return all(key in self._values for key in keys)

    def add(self, key: str, amount: int, /) -> int:
        self._check()
        with self._lock:
            now = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(now).encode()
            return now

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        self._check()
        with self._lock:
            found = self._values.get(key)
            if found == expected.encode() or (found is None and not expected):
                self._values[key] = desired.encode()
            return self._values.get(key, expected.encode())


class Compiles:
    """
    Stands in for `jitgen.compile.workers.run`: publishes fake entries, and counts them by name.

    Attributes:
        counts: How often each kernel was compiled.
        tier: Where the kernels come from, as the processes tell it.
        before: Called with a kernel's name before it is; the outcome, unless that is None.
        refused: Called likewise; what the process answers besides an error, unless that is None.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.tier = "compiled"
        self.before: Callable[[str], OutcomeKind | None] = lambda _: None
        self.refused: Callable[[str], dict[str, Any] | None] = lambda _: None
        self._lock = threading.Lock()

    def run(
        self,
        function: str,
        tasks: Sequence[Any],
        *,
        jobs: int,
        timeout_s: float,
        preload: object = (),
    ) -> Iterator[Outcome]:
        for index, task in enumerate(tasks):
            spec = spec_of(Config.from_json(task["config"]), Arch.parse(task["arch"]))
            with self._lock:
                self.counts[spec.name] += 1
            kind = self.before(spec.name)
            if (answer := self.refused(spec.name)) is not None:
                kind = OutcomeKind.OK
                yield Outcome(task=task, index=index, kind=kind, result=answer, seconds=1.0)
            elif kind is None:
                Store.open(Path(task["root"]), mode="rw").publish(record(spec), fake_files(1))
                result = {"key": spec.key, "tier": self.tier, "why_private": ""}
                kind = OutcomeKind.OK
                yield Outcome(task=task, index=index, kind=kind, result=result, seconds=1.5)
            else:
                yield Outcome(task=task, index=index, kind=kind, error=f"{kind}!", seconds=1.0)
