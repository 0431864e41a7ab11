# SPDX-License-Identifier: Apache-2.0
"""
The findings of the doctor about remote caches and compile services: whether this machine could load
a kernel from them and, with --remote, what each answers to a request for a key that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

from jitgen.cli.findings import Finding, Health, about
from jitgen.errors import JitgenError
from jitgen.settings import settings

if TYPE_CHECKING:
    from jitgen.cache import Store

_SECTION = "elsewhere"
_SOON = timedelta(days=30)


def setup_findings() -> Iterator[Finding]:
    """Yield what prevents this machine from loading a remote kernel; sends no request."""
    try:
        if settings.remote or settings.service or settings.verify == "always":
            yield from _packages()
            yield from _trust(_store())
    except JitgenError as error:
        yield _broken(error)


def remote_findings() -> Iterator[Finding]:
    """Yield whether the remote caches and the service answer, and the trust document's state."""
    try:
        if not (settings.remote or settings.service):
            yield about(_SECTION, "places", "none", Health.NOTE)
        yield from _packages()
        store = _store()
        yield from _trust(store)
        from jitgen.remote.probe import probe_all

        for found in probe_all(store):
            yield about(
                _SECTION,
                found.tier,
                f"{found.url} answers in {found.seconds * 1e3:.0f} ms"
                if found.is_there
                else found.reason,
                Health.WARN,
                "kernels are compiled here instead",
                when=not found.is_there,
            )
        if settings.service and settings.verify != "off":
            yield from _signers(store)
    except JitgenError as error:
        yield _broken(error)


def _signers(store: Store) -> Iterator[Finding]:
    """Yield whether the service is ready, and whether the key that it signs with is accepted."""
    from jitgen.remote.probe import signers
    from jitgen.signing.standing import SHOWN, standing

    trust = store.trusted.current().trust
    for found in signers(store):
        if found.reason:
            continue  # it does not answer: reported already
        if found.unready:
            yield _about_signer(f"{found.url} is not ready: {found.unready}", Health.WARN)
        if not found.keyid:
            value = f"{found.url} signs nothing, so that all that it has is refused here"
            yield _about_signer(value, Health.FAIL, "give it signing.key, or set JITGEN_VERIFY")
            continue
        stands = standing(found.keyid, trust)
        name = f"{found.url} signs with key {found.keyid[:SHOWN]}"
        if stands.is_refused:
            value, health = f"{name}, and here {stands.reason}", Health.FAIL
        else:
            value, health = name, Health.WARN if stands.reason else Health.OK
        yield _about_signer(value, health, stands.reason)


def _about_signer(value: str, health: Health, advice: str = "") -> Finding:
    return about(_SECTION, "signing", value, health, advice)


def _broken(error: JitgenError) -> Finding:
    return about(_SECTION, "setup", str(error), Health.FAIL)


def _store() -> Store:
    from jitgen.cache import Store

    return Store.open()


def _packages() -> Iterator[Finding]:
    """Yield each package that is missing to fetch and unpack kernels."""
    places = (*settings.remote, *filter(None, [settings.service]))
    needed = {"obstore" for place in places if not place.startswith(("http", "file:"))}
    for package in sorted(needed | {"zstandard"} if places else needed):
        if find_spec(package) is None:
            yield about(
                _SECTION, package, "not installed", Health.FAIL, f"run: pip install {package}"
            )


def _trust(store: Store) -> Iterator[Finding]:
    if settings.verify == "off":
        yield about(
            _SECTION,
            "trust",
            "JITGEN_VERIFY=off: everyone who can write to one of these places can run code here",
            Health.WARN,
        )
        return
    is_asked = settings.remote or settings.service or settings.verify == "always"
    if settings.trust is None and not is_asked:
        return
    from jitgen.signing import times

    trust = store.trusted.current().trust
    configured = store.trusted.configured().version
    older = (
        f", remembered; JITGEN_TRUST has version {configured}" if configured < trust.version else ""
    )
    left = trust.expires - times.now()
    health = Health.OK if left > _SOON else Health.WARN if left > timedelta() else Health.FAIL
    yield about(
        _SECTION,
        "trust",
        f"version {trust.version}, until {times.text_of(trust.expires)}{older}",
        health,
        "" if health is Health.OK else "renew it: jitgen trust add, rotate or revoke",
    )
