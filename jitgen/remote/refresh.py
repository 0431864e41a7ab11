# SPDX-License-Identifier: Apache-2.0
"""
Later trust documents, from where kernels are fetched: so a revocation reaches a running fleet.

A place need not be trusted for it. What it gives counts only if a root key of the document in use
signed it and its version is later; a place that gives an old one, or none, changes nothing.
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
"""How often a host asks each place, in seconds, while it fetches."""


def refresh(store: Store, url: str, read: Callable[[], bytes]) -> None:
    """
    Go by the trust document that the place at `url` gives out, if it is a later one.

    Args:
        store: Whose processes are to go by it.
        url: The place, for messages.
        read: Asks it for the document.

    Raises:
        Unreachable, LocalFailure, Busy: It does not answer.
    """
    if settings.verify == "off" or store.trusted.is_fresh(EVERY_S, url):
        return
    try:
        in_use = store.trusted.current().trust.version
    except SigningError:
        return  # then every kernel is refused, with the reason; the place is not to blame
    try:
        data = read()
        if opened(data).trust.version > in_use:
            store.trusted.accept(data)
    except NotFound:
        pass
    except SigningError as error:
        warn_once(f"trust of {url}", "%s gives a trust document that is not taken: %s", url, error)
    store.trusted.mark_fresh(url)
