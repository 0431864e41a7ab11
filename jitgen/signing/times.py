# SPDX-License-Identifier: Apache-2.0
"""Times in signed documents: ISO 8601 in UTC, to the second."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from jitgen.errors import SigningError
from jitgen.support.text import shown

_FORM = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", re.ASCII)


def now() -> datetime:
    """Return the present time, in UTC."""
    return datetime.now(UTC)


def text_of(moment: datetime) -> str:
    """Return the text of `moment` in documents: ``2026-01-02T03:04:05+00:00``."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def moment_of(text: object, what: str) -> datetime:
    """
    Return the time of `text`, which is the field `what` of a document.

    Only one form is accepted, so that each document has only one encoding.

    Raises:
        SigningError: It is not written as `text_of` writes it.
    """
    try:
        if isinstance(text, str) and _FORM.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    raise SigningError(f"{what} is {shown(text)}, not a time such as 2026-01-02T03:04:05+00:00")
