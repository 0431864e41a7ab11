# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of places elsewhere: they are asked, each for a kernel that nobody has."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from jitgen.cli.findings import Finding, Health
from jitgen.errors import JitgenError
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import Store

_SECTION = "elsewhere"
_SOON = timedelta(days=30)


def remote_findings() -> Iterator[Finding]:
    """Yield whether the places of the settings answer, and what the trust document says."""
    from jitgen.cache import Store

    if not (settings.remote or settings.service):
        yield Finding(section=_SECTION, name="places", value="none", health=Health.NOTE)
    try:
        store = Store.open()
        yield from _trust(store)
        from jitgen.remote.look import asked

        for found in asked(store):
            yield Finding(
                section=_SECTION,
                name=found.tier,
                value=f"{found.url} answers in {found.seconds * 1e3:.0f} ms"
                if found.is_there
                else found.reason,
                health=Health.OK if found.is_there else Health.WARN,
                advice="" if found.is_there else "kernels are compiled here instead",
            )
    except JitgenError as error:
        yield Finding(section=_SECTION, name="setup", value=str(error), health=Health.FAIL)


def _trust(store: Store) -> Iterator[Finding]:
    if settings.verify == "off":
        yield Finding(
            section=_SECTION,
            name="trust",
            value="JITGEN_VERIFY=off: whoever can write to one of these places can run code here",
            health=Health.WARN,
        )
        return
    if settings.trust is None and not (settings.remote or settings.service):
        return
    from jitgen.signing import times

    trust = store.trusted.current().trust
    left = trust.expires - times.now()
    health = Health.OK if left > _SOON else Health.WARN if left > timedelta() else Health.FAIL
    yield Finding(
        section=_SECTION,
        name="trust",
        value=f"version {trust.version}, until {times.text_of(trust.expires)}",
        health=health,
        advice="" if health is Health.OK else "renew it: jitgen trust add, rotate or revoke",
    )
