# SPDX-License-Identifier: Apache-2.0
"""
The last section of ``jitgen doctor``: what a serving program would do if it started on this machine
now.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jitgen.cli.findings import Finding, Health, about
from jitgen.cli.output import counted, human_time
from jitgen.errors import JitgenError
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import Store

_SECTION = "start"
_MOST = 5  # plans that are listed

_MISSES = {
    "compile": "is compiled here, and its call waits for that",
    "fallback": "is compiled in the background, while another kernel serves if one is there",
    "error": "raises KernelMiss",
}

_UNRECORDED = "not recorded for {0}: jitgen prewarm PLAN --arch {0} --check says if one is complete"


def start_findings() -> Iterator[Finding]:
    """
    Yield where a program would look for kernels, what a miss would do, and which plans are ready.
    """
    try:
        from jitgen.cache import Store

        store = Store.open()
        yield about(_SECTION, "looks into", ", then ".join(_places(store)))
        yield _miss()
        yield from _ready(store)
        yield _before(store)
    except (JitgenError, OSError) as error:
        yield about(_SECTION, "start", f"it would end with an error: {error}", Health.FAIL)


def _places(store: Store) -> Iterator[str]:
    """Yield the caches and services in which a kernel is searched, in order."""
    if store.mode != "off":
        yield str(store.root)
    yield from map(str, store.bases)
    yield from settings.remote
    if settings.service:
        yield settings.service
    if store.mode == "off" and not (settings.remote or settings.service):
        yield "no place: JITGEN_CACHE=off"


def _miss() -> Finding:
    """Report what a call does if no cache or service has its kernel."""
    from jitgen.compile import toolchain

    name, mode = "a missing one", settings.on_miss
    reason = "" if mode == "error" else toolchain.why_not_compiling()
    if not reason:
        return about(_SECTION, name, f"{_MISSES[mode]} (JITGEN_ON_MISS={mode})")
    first = f"{settings.service} is asked to compile it; without an answer it " * bool(
        settings.service
    )
    return about(
        _SECTION,
        name,
        f"{first or 'it '}raises ToolchainError: {reason}",
        Health.NOTE if settings.service else Health.WARN,
        "prewarm on a machine that compiles, or name a JITGEN_SERVICE",
        when=not settings.service,
    )


def _ready(store: Store) -> Iterator[Finding]:
    """
    Yield a finding for each plan that was prewarmed here, a warning if it lacks this machine's
    device or settings; or one finding that says that there are no such plans.
    """
    from jitgen.runtime import coverage
    from jitgen.selection.device import chosen_for, device_name
    from jitgen.targets.devices import default_arch

    arch = default_arch()
    if not arch.is_gpu:
        yield about(_SECTION, "plans", _UNRECORDED.format(arch))
        return
    chosen, asked = chosen_for(arch)
    names = tuple(dict.fromkeys((chosen.name, asked or device_name(arch))))
    standing = coverage.standing(store, arch, names)
    for plan, lack in list(standing.items())[:_MOST]:
        yield about(
            _SECTION,
            "plan",
            f"{plan} {lack or f'was prewarmed for {chosen.name}'}",
            Health.WARN,
            f"run: jitgen prewarm {coverage.argument(plan)} --arch {arch} --device '{chosen.name}'",
            when=lack,
        )
    if len(standing) > _MOST:
        yield about(_SECTION, "plan", f"and {len(standing) - _MOST} more")
    if not standing:
        yield about(
            _SECTION,
            "plans",
            f"none was prewarmed here for {arch}: jitgen prewarm PLAN --arch {arch}",
            Health.NOTE,
        )


def _before(store: Store) -> Finding:
    """
    Report on earlier starts: the share of their kernels that was on this machine, and the time
    lost.
    """
    traffic = store.index.traffic()
    if traffic.total.hit_rate is None:
        return about(_SECTION, "earlier", "no process has asked for a kernel here in 30 days")
    every = sum(each.kernels for each in traffic.total.tiers.values())
    text = (
        f"{traffic.total.hit_rate * 100:.1f} % of {counted(every, 'kernel')} were here in the last "
        f"{counted(len(traffic.days), 'day')}"
    )
    lost = traffic.total.lost_s
    return about(
        _SECTION,
        "earlier",
        f"{text}; callers waited {human_time(lost)} for the others" if lost else text,
        Health.NOTE,
        "see: jitgen cache stats",
        when=lost,
    )
