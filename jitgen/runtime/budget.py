# SPDX-License-Identifier: Apache-2.0
"""
The largest number of different kernels of a process, or of a plan: JITGEN_MAX_KERNELS.

A handful of kernels serves any number of sizes. If a change of a template or of the selector made a
size part of the kernel, no test would fail, but months later a fleet would compile thousands of
kernels. So operators state how many kernels a service needs. The first kernel beyond this number
gives a warning with the fields in which the kernels differ most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from jitgen.config import Arch, Config
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.runtime.spec import serving
from jitgen.runtime.tiers import Tiers, readable

if TYPE_CHECKING:
    from jitgen.cache import Store

_SHOWN_FIELDS = 3


def beyond(
    wanted: Collection[tuple[Config, Arch]], store: Store, most: int
) -> tuple[tuple[Config, Arch], ...]:
    """
    Return the kernels of `wanted` beyond the first `most`; those in `store` are counted first.
    Return an empty tuple if `most` is 0.
    """
    if not most or len(wanted) <= most:
        return ()
    tiers = Tiers(store)
    held = [
        readable(tiers, serving(config, arch), tells_miss=False) is not None
        for config, arch in wanted
    ]
    ordered = sorted(zip(held, wanted, strict=True), key=lambda pair: not pair[0])
    return tuple(each for _, each in ordered[most:])


def tell(asked: Collection[tuple[Config, Arch]], newest: tuple[Config, Arch], most: int) -> None:
    """
    Warn, once per process, that the kernels `asked` are more than `most`; every call emits an event
    that names the kernel `newest`.
    """
    config, arch = newest
    name = config.name(arch)
    warn_once(
        "kernel budget",
        "this process asks for %d distinct kernels, JITGEN_MAX_KERNELS=%d foresees fewer (%s); the "
        "first one beyond is %s",
        len(asked),
        most,
        varied([config for config, _ in asked]),
        name,
    )
    spec = serving(config, arch)
    detail = f"{len(asked)} distinct kernels, JITGEN_MAX_KERNELS={most}"
    events.emit(Event(kind=EventKind.BUDGET, kernel=name, key=spec.key, detail=detail))


def varied(configs: Collection[Config]) -> str:
    """
    Return a text that names the fields in which `configs` differ most: ``tile.m has 40 values,
    ...``.
    """
    values: dict[str, set[str]] = {}
    for config in configs:
        for field, value in _leaves(config.to_json()):
            values.setdefault(field, set()).add(repr(value))
    most = sorted(values, key=lambda field: (-len(values[field]), field))[:_SHOWN_FIELDS]
    return ", ".join(f"{field} has {len(values[field])} values" for field in most)


def _leaves(document: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
