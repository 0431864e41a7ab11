# SPDX-License-Identifier: Apache-2.0
"""
Measurements, which take precedence over the model: first those of this machine, then those shipped
with jitgen.

A measurement of this machine is valid for this device, these templates and this compiler, and is a
file of the cache (`jitgen.cache.tuned`); if nothing was ever measured, the look-up is one access to
the disk. A shipped table is valid for a kind of GPU; it is a JSON file in the folder of its target,
read when it is first needed. Anything wrong with either gives a warning and is ignored; then the
model chooses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from jitgen.cache.tuned import note_trouble
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.errors import ToolchainError
from jitgen.events import warn_once
from jitgen.selection import device
from jitgen.support.documents import canonical_json
from jitgen.targets.legality import target

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.config.problem import Problem
    from jitgen.selection.packed import Packed
    from jitgen.selection.record import TuningRecord
    from jitgen.targets.protocol import Candidate

TARGETS = Path(__file__).resolve().parents[1] / "targets"
"""Folder of the targets; each has a folder of shipped tables, ``tables/DEVICE.json``."""

MARGINS = {"stream": 0.03, "multiply": 0.05}
"""
The lead that the winner of a shipped table needs over the model's choice to be chosen instead, by
the resource that limits the choice according to the model.

A table was measured with a few random row distributions on one GPU, and calls have others. On 40
batches with uneven rows, kernels with a smaller lead in the table of the same GPU lost 0.2 % more
than the model's choice on average; on 80 batches of earlier days, 0.6 to 0.8 % more. Kernels that
memory limits depend less on rows.
"""

EVEN_SINCE, EVEN_MARGIN = "2026-11-29T15", 0.03
"""
When records began to have times of even rows, of any number of groups, put together so that a
kernel far behind with some rows is not ahead; and the lead that the winner of such a record needs.

With 34 such records of 209 to 256 rows and this lead, choices lost 2.9 instead of 8.3 % in 21 even
cases of an H200, and 4.5 instead of 3.4 % in 83 uneven ones; with `MARGINS` 1.4 and 6.4 %. Of older
records, which lack even rows, a lead of 3 % lost up to 25 % there.
"""

HOT_SINCE, HOT_MARGIN = "2026-11-29T17:50", 0.015
"""
Likewise for records that also have times of a batch in which one group has many rows. With 14 of
them and this lead instead of 3 %, choices lost 2.8 instead of 2.9 % in 240 uneven cases of an H200,
1.7 instead of 1.9 % in 40 of another.
"""

LOW, TALLER = 64, 0.02
"""
Rows of the lowest tile of FP8, and by what part a taller one may be slower in a shipped table and
is still chosen instead.

A group with more rows than its tile reads its weights again, and calls are more uneven than the
draws of a table. With this, choices lose 3.2 instead of 3.8 % in 738 cases of an H200, and 1.6
instead of 1.7 % in 238 of an H100 (without the limits of `_FEWEST, _CHAINED`).
"""

_FEWEST, _CHAINED = 8, 1024
"""
Up to the former mean of rows, where calls for one token are, tiles of `LOW` rows stay; also up to
the latter number of ragged rows, those of 128 tokens with eight experts each: a layer loads the
weights of such tiles early for 64 tokens (`jitgen.targets.early`), and for 128 it took 363 instead
of 350 us with taller ones (32 experts of DeepSeek-V3, rows nearly even, H200).
"""

_BUCKETS, _EXCLUDED = "buckets", "excluded"


class Source(StrEnum):
    """
    What decided a choice: measurements of this machine or shipped ones, the model, or another rule.
    """

    TUNED = "tuned"
    SHIPPED = "shipped"
    MODEL = "model"
    STATIC = "static"
    PASSES = "passes"


class Measured(NamedTuple):
    """
    A record, and its origin.

    Attributes:
        source: ``tuned`` or ``shipped``.
        device: Name of the device that it was measured on.
        record: The measurements.
        note: How the measured problem differs; see `jitgen.selection.bias_fallback`.
    """

    source: Source
    device: str
    record: TuningRecord
    note: str = ""

    def winner(self, usable: Mapping[str, Candidate], first: Candidate, name: str) -> str | None:
        """
        Return the kernel of `usable` that the measurements favour; None if they cover none of them,
        or do not correct the model's choice.

        Args:
            usable: Kernels by name, in the order of the model.
            first: The model's choice. A shipped table corrects it if the fastest kernel leads by
                more than the margin of its record, or if it has `LOW` rows and a taller tile is
                about as fast. If the choice was not measured, the next measured candidate is
                compared instead.
            name: The name of the kernel of `first`.
        """
        times, fastest = self.record.times_us, self.record.fastest(usable.keys())
        if self.source is Source.SHIPPED and fastest is None:  # some are younger than the table
            fastest = self.record.fastest(usable.keys() & times.keys())
        if fastest is None or self.source is not Source.SHIPPED or name not in usable:
            return fastest
        margin = _margin(self.record.date, first.limiter)
        known = next(each for each in usable if each in times)
        if times[known] > times[fastest] * (1 + margin):
            return self._taller(fastest, usable)
        return self._taller(name, usable) if name in times else None

    def _taller(self, name: str, usable: Mapping[str, Candidate]) -> str:
        """Return `name`, or the fastest taller tile if `name` has `LOW` rows: see `TALLER`."""
        times, problem = self.record.times_us, self.record.problem
        configs = {
            each: candidate.config
            for each, candidate in usable.items()
            if each in times and isinstance(candidate.config, GroupedGemmConfig)
        }
        taller = [each for each, config in configs.items() if config.tile.m > LOW]
        config = configs.get(name)
        if not taller or config is None or config.tile.m != LOW:
            return name
        is_chained = config.layout is Layout.RAGGED and problem.m <= _CHAINED
        if problem.groups == 1 or problem.rows_per_group <= _FEWEST or is_chained:
            return name
        best = min(taller, key=times.__getitem__)
        return best if times[best] <= times[name] * (1 + TALLER) else name

    def reason(self, best: Candidate, first: Candidate, arch: Arch) -> str:
        """
        Return a sentence that says why `best` is chosen and not `first`, the model's choice: its
        time, and by how much it is faster.
        """
        times, shape, name = self.record.times_us, best.config.short, best.config.name(arch)
        text = f"{shape} took {times[name]:.1f} us{self.note} on {self.device}"
        text += f" on {self.record.date[:10]}"
        if self.source is Source.SHIPPED:
            text += " (shipped table)"
        if first.config != best.config:
            other = times.get(first.config.name(arch))
            if other is None:
                return f"{text}; the model's choice, {first.config.short}, was not measured"
            lead = (other / times[name] - 1) * 100
            order = "ahead of" if lead >= 0 else "behind"
            text += f", {abs(lead):.1f} % {order} the model's choice, {first.config.short}, at "
            text += f"{other:.1f} us"
            return text if lead >= 0 else f"{text}, but with other rows a taller tile loses less"
        text += ", and is the model's choice"
        fastest = min(times, key=times.__getitem__)
        if name in {self.record.winner, fastest}:
            return f"{text} too"
        behind = (times[name] / times[fastest] - 1) * 100
        return f"{text}; {behind:.1f} % behind the fastest, too little to hold for other rows"


def _margin(date: str, limiter: str) -> float:
    """
    Return the lead that the winner of a shipped record of `date` needs over the model's choice,
    which `limiter` limits.
    """
    if date >= HOT_SINCE:
        return HOT_MARGIN
    return EVEN_MARGIN if date >= EVEN_SINCE else MARGINS[limiter]


class Measurements(NamedTuple):
    """
    All measurements of a problem.

    Attributes:
        measured: Records, the most trusted first.
        excluded: Why kernels must not be chosen, by name.
    """

    measured: tuple[Measured, ...] = ()
    excluded: Mapping[str, str] = MappingProxyType({})

    @property
    def times_us(self) -> dict[str, float]:
        """Microseconds of each kernel that was measured, by name."""
        found: dict[str, float] = {}
        for measured in reversed(self.measured):
            found |= measured.record.times_us
        return found


_generation = 0


def generation() -> int:
    """Return a number that grows whenever this process records something."""
    return _generation


def lookup(
    problem: Problem, arch: Arch, store: Callable[[], Store | None], asked: str = ""
) -> Measurements:
    """
    Return the measurements for `problem`, the representative of its bucket.

    Args:
        problem: The problem.
        arch: The target.
        store: Returns the store with the measurements of this machine, or raises.
        asked: Name of the requested device; empty for that of this machine. Measurements of other
            devices are ignored.
    """
    here = _local(problem, arch, store, asked)
    name = shipped_device(arch, asked)
    record = shipped(arch, name).get(problem.slug)
    if record is None:
        return here
    excluded = dict(record.excluded)
    for measured in here.measured:  # failures elsewhere do not exclude kernels that work here
        for name in measured.record.times_us:
            excluded.pop(name, None)
    return Measurements(
        measured=(
            *here.measured,
            Measured(source=Source.SHIPPED, device=name, record=record),
        ),
        excluded={**excluded, **here.excluded},
    )


def _local(
    problem: Problem, arch: Arch, opened: Callable[[], Store | None], asked: str
) -> Measurements:
    store = opened()
    if store is None or store.tuned.is_empty:
        return Measurements()
    try:
        excluded = exclusions(store, arch, asked)
        record = recorded(store, problem, arch, asked)
    except ToolchainError:
        return Measurements()  # without a compiler's version nothing is known to hold
    if record is None:
        return Measurements(excluded=excluded)
    name = asked or device.device_name(arch)
    return Measurements(
        measured=(Measured(source=Source.TUNED, device=name, record=record),),
        excluded={**record.excluded, **excluded},
    )


def recorded(store: Store, problem: Problem, arch: Arch, name: str = "") -> TuningRecord | None:
    """
    Return the measurements of `problem` on the device called `name` (empty: this machine's); None
    if there are none.

    Raises:
        ToolchainError: The compiler's distributions are not installed.
    """
    return _record(store, problem.slug, device.folder(arch, name), problem)


def all_recorded(store: Store, arch: Arch) -> list[TuningRecord]:
    """Return everything that was measured on this device, sorted; raises as `recorded`."""
    folder = device.folder(arch)
    found = (_record(store, name, folder) for name in store.tuned.names(folder, _BUCKETS))
    records = [record for record in found if record is not None]
    return sorted(records, key=lambda record: record.problem.kind)


def _record(
    store: Store, name: str, folder: str, problem: Problem | None = None
) -> TuningRecord | None:
    document = store.tuned.read(folder, _BUCKETS, name)
    if document is None:
        return None
    from jitgen.selection.record import BadRecord, TuningRecord

    try:
        record = TuningRecord.from_json(document)
        if name != record.problem.slug or problem not in (None, record.problem):
            raise BadRecord("it belongs to another problem")
    except BadRecord as error:
        warn_once(f"tuned record {name}", "ignoring what was measured for %s: %s", name, error)
        return None
    return record


def exclusions(store: Store, arch: Arch, name: str = "") -> dict[str, str]:
    """
    Return the kernels that must not be chosen on the device called `name` (empty: this machine's),
    by name, each with the reason; raises as `recorded`.
    """
    folder = device.folder(arch, name)
    found = {}
    for kernel in store.tuned.names(folder, _EXCLUDED):
        reason = (store.tuned.read(folder, _EXCLUDED, kernel) or {}).get("reason")
        found[kernel] = reason if isinstance(reason, str) else "it failed when it was measured"
    return found


def record(store: Store, arch: Arch, found: TuningRecord, name: str = "") -> None:
    """
    Store `found` for the device called `name` (empty: this machine's); it decides from the next
    choice on.

    Raises:
        CacheError: The store cannot be written.
    """
    global _generation
    store.tuned.write(device.folder(arch, name), _BUCKETS, found.problem.slug, found.to_json())
    _generation += 1


def exclude(store: Store, arch: Arch, name: str, reason: str) -> None:
    """
    Record that kernel `name` must not be chosen on this device, until `readmit`; raises as
    `record`.
    """
    global _generation
    from jitgen.selection.record import SCHEMA

    document = {"schema": SCHEMA, "name": name, "reason": reason}
    store.tuned.write(device.folder(arch), _EXCLUDED, name, document)
    _generation += 1


def readmit(store: Store, arch: Arch, name: str) -> None:
    """Let kernel `name` be measured and chosen again."""
    global _generation
    store.tuned.remove(device.folder(arch), _EXCLUDED, name)
    _generation += 1


@cache
def shipped_device(arch: Arch, asked: str = "") -> str:
    """
    Return the name of the device whose shipped table serves the device `asked` (empty: this
    machine's): its own table if there is one, else that of the target's first device.
    """
    reference = target(arch).devices[0].name
    shipped = _shipped_devices(arch)
    if not set(shipped) - {reference}:
        return reference  # for any device: this machine's need not be found out
    own = asked or device.device_name(arch)
    return next((name for name in shipped if name.lower() == own.lower()), reference)


@cache
def _shipped_devices(arch: Arch) -> tuple[str, ...]:
    names = (each.name for each in target(arch).devices)
    return tuple(name for name in names if file_of(arch, name).exists())


def file_of(arch: Arch, name: str) -> Path:
    """Return the path of the shipped table of device `name`; there may be no such file."""
    return TARGETS / arch / "tables" / f"{device.slug(name)}.json"


def digests(store: Store, arch: Arch, asked: str = "") -> tuple[str, str]:
    """
    Return the SHA-256 of the shipped table that serves the device `asked` (empty: this machine's),
    and that of everything that was measured on it here; each is empty where there is none.
    """
    path, shipped, measured = file_of(arch, shipped_device(arch, asked)), "", ""
    if path.exists():
        shipped = hashlib.sha256(path.read_bytes()).hexdigest()
    if not store.tuned.is_empty:
        folder = device.folder(arch, asked)
        found = {
            f"{kind}/{name}": store.tuned.read(folder, kind, name)
            for kind in (_BUCKETS, _EXCLUDED)
            for name in store.tuned.names(folder, kind)
        }
        measured = hashlib.sha256(canonical_json(found).encode("ascii")).hexdigest() * bool(found)
    return shipped, measured


@cache
def _packed(arch: Arch, name: str) -> Packed | None:
    """
    Return a shipped table; None if `name` has none, or only one that is damaged, or of another
    target or generation of kernels. Raises OSError, which is not cached.
    """
    path = file_of(arch, name)
    if not path.exists():
        return None
    from jitgen.selection import packed

    try:
        found = packed.read(path)
    except ValueError as error:
        warn_once(f"table {arch}", "ignoring the shipped measurements in %s: %s", path, error)
        return None
    if found.shell.arch is not arch:
        return None
    own = canonical_json(device.generations(arch))
    if found.shell.conditions.get("kernels", own) != own:
        warn_once(f"table {arch}", "ignoring %s: it is of another generation of kernels", path)
        return None
    return found


def shipped(arch: Arch, name: str) -> Mapping[str, TuningRecord]:
    """
    Return the records of the shipped table of device `name`, by the slugs of their problems; none
    where there is no table.
    """
    try:
        found = _packed(arch, name)
    except OSError as error:
        warn_once(f"table {arch}", "the shipped measurements of %s cannot be read: %s", name, error)
        note_trouble(error)
        return {}
    return {} if found is None else found  # `bool(found)` would read all of it
