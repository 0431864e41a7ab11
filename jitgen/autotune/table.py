# SPDX-License-Identifier: Apache-2.0
"""
Export of records as one table, to ship with jitgen or to copy to another machine, and import of
such a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING

from jitgen._version import __version__
from jitgen.compile import toolchain
from jitgen.config import Arch
from jitgen.config.problem import Problem
from jitgen.errors import ConfigError
from jitgen.runtime.session import current, select
from jitgen.selection import device
from jitgen.selection import measurements as tuned
from jitgen.selection.choice import bucket
from jitgen.selection.numerics import regardless
from jitgen.selection.record import Table, TuningRecord
from jitgen.support.documents import canonical_json
from jitgen.support.frozen import frozen
from jitgen.targets import legality
from jitgen.templates import digest

if TYPE_CHECKING:
    from jitgen.cache import Store


@frozen
class Imported:
    """
    The result of importing a table.

    Attributes:
        table: The table.
        taken: Problems for which the table decides the kernel from now on.
        skipped: The other problems by name, with the reason for which each was left out.
        differences: Conditions that differ from those of the measurement, by name: the value on
            this machine, and the value of the measurement.
    """

    table: Table
    taken: tuple[Problem, ...]
    skipped: Mapping[str, str] = field(hash=False)
    differences: Mapping[str, tuple[str, str]] = field(hash=False)


def export_table(store: Store, arch: Arch, problems: Iterable[Problem] | None = None) -> Table:
    """
    Return the measurements of this device.

    Args:
        store: The store with the records.
        arch: The target.
        problems: Problems whose buckets to export; None for all.
    """
    records = tuned.all_recorded(store, arch)
    if problems is not None:
        wanted = {bucket(problem, arch) for problem in problems}
        records = [record for record in records if record.problem in wanted]
    return Table(
        device=device.device_name(arch),
        arch=arch,
        conditions={
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **_conditions(arch),
        },
        records=tuple(records),
    )


def import_table(store: Store, document: object) -> Imported:
    """
    Import a table that `export_table` made, as if it had been measured on this machine. If this
    machine has no such GPU, the table is used for the device of its measurement, if the target
    lists that device: then a prewarm on this machine compiles the kernels that are chosen for that
    device.

    Records are stored for the compiler and templates of this installation, even if the table was
    measured with other versions; `Imported.differences` lists the differences.

    Raises:
        ConfigError: `document` is no table, or this machine cannot choose kernels for its device.
        CacheError: The store cannot be written.
    """
    table = Table.from_json(document)
    _require_device(table)
    taken, skipped = [], {}
    for record in table.records:
        reason = _obstacle(record, table.arch)
        if reason:
            skipped[record.problem.slug] = reason
            continue
        tuned.record(store, table.arch, record, table.device)
        taken.append(record.problem)
    current.get().forget()
    own = _conditions(table.arch)
    differences = {
        name: (str(value), str(table.conditions[name]))
        for name, value in own.items()
        if name in table.conditions and table.conditions[name] != value
    }
    return Imported(table=table, taken=tuple(taken), skipped=skipped, differences=differences)


def _require_device(table: Table) -> None:
    """Check that this machine may choose kernels for the device of a table; raises ConfigError."""
    arch, here = table.arch, device.device_name(table.arch)
    known = [each.name for each in legality.target(arch).devices]
    if arch.is_gpu and not device.gpu_at_hand(arch):
        if table.device not in known:
            raise ConfigError(
                f"the table was measured on {table.device}, and kernels for {arch} can be chosen "
                f"here for {', '.join(known)}; export one on such a device"
            )
    elif table.device != here:
        raise ConfigError(
            f"the table was measured on {table.device}, and kernels for {arch} are chosen "
            f"for {here} here; export one on such a device"
        )


def _obstacle(record: TuningRecord, arch: Arch) -> str:
    """Return why `record` cannot be used on this machine; empty if it can."""
    if bucket(record.problem, arch) != record.problem:
        return "this version of jitgen chooses for other numbers of rows"
    candidates = select(regardless(record.problem), arch, use_measured=False).candidates
    if record.winner not in {candidate.config.name(arch) for candidate in candidates}:
        return f"this version of jitgen does not choose {record.winner}"
    return ""


def _conditions(arch: Arch) -> dict[str, str]:
    """
    Return the conditions of this machine other than the device on which times depend, by name.
    """
    found = legality.target(arch)
    digests = {
        template.entry: digest(template)
        for op in found.operations
        for template in found.rules(op).templates()
    }
    return {
        "driver": device.driver_version() if arch.is_gpu else "",
        "jitgen": __version__,
        "kernels": canonical_json(device.generations(arch)),
        "templates": canonical_json(digests),
        "torch": metadata.version("torch"),
        **toolchain.versions(),
    }
