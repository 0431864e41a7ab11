# SPDX-License-Identifier: Apache-2.0
"""
Fetches later trust documents from the backends, so that revocations reach a running fleet.

The backend need not be trusted. A document is used only if a root key of the one in use signed it
and its version is later; an old one, or none, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jitgen.errors import SigningError
from jitgen.events import warn_once
from jitgen.remote.outcomes import NotFound
from jitgen.settings import settings
from jitgen.signing.trust import opened

if TYPE_CHECKING:
    from jitgen.cache import Store

EVERY_S = 600.0
"""Seconds between two requests of a host to a backend, while it fetches."""


def refresh(store: Store, url: str, read: Callable[[], bytes]) -> None:
    """
    Use the trust document of the backend at `url`, if it is a later one.

    Args:
        store: The store whose processes will use it.
        url: The backend, for messages.
        read: Function that requests the document.

    Raises:
        Unreachable, LocalFailure, Busy: The backend does not answer.
    """
    if settings.verify == "off" or store.trusted.is_fresh(EVERY_S, url):
        return
    try:
        in_use = store.trusted.current().trust.version
    except SigningError:
        return  # then every kernel is refused, with the reason; the backend is not at fault
    try:
        data = read()
        if opened(data).trust.version > in_use:
            store.trusted.accept(data)
    except NotFound:
        pass
    except SigningError as error:
        warn_once(f"trust of {url}", "%s gives a trust document that is not taken: %s", url, error)
    store.trusted.mark_fresh(url)
