# SPDX-License-Identifier: Apache-2.0
"""
A remembered failure to compile a kernel, and when it expires.

A failure is remembered for a number of seconds after it was recorded. If a clock was set back, this
time must not become longer: a failure with a time in the future is ignored.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict

from jitgen.support.documents import BadDocument, parse_json
from jitgen.support.frozen import frozen
from jitgen.support.text import printable

_MAX_REASON = 4000  # characters
_MAX_BYTES = 2**16
_SKEW_S = 60.0  # by which the clocks of two hosts may differ


@frozen
class Failure:
    """
    A compile that failed.

    Attributes:
        reason: The compiler's message.
        name: Name of the kernel.
        created: Time at which it failed, in seconds since 1970.
        ttl_s: Seconds for which it is not tried again.
    """

    reason: str
    name: str
    created: float
    ttl_s: float

    @property
    def expires(self) -> float:
        """The time from which the kernel may be tried again, in seconds since 1970."""
        return self.created + self.ttl_s

    @property
    def is_over(self) -> bool:
        """Whether the failure has expired, so that the kernel may be tried again."""
        return not -_SKEW_S <= time.time() - self.created < self.ttl_s

    def to_json(self) -> str:
        """Return the JSON text that `parse_failure` reads."""
        return json.dumps(asdict(self))


def failure(name: str, reason: str, ttl_s: float) -> Failure:
    """Return a failure to compile kernel `name` that happened now."""
    words = printable(reason, keep="\n")[:_MAX_REASON]
    return Failure(reason=words, name=name, created=time.time(), ttl_s=ttl_s)


def parse_failure(text: str | None) -> Failure | None:
    """Return the failure that `Failure.to_json` wrote; None for anything else."""
    try:
        found = parse_json((text or "null").encode("utf-8", "replace"), max_bytes=_MAX_BYTES)
        return Failure(
            reason=printable(str(found["reason"]), keep="\n")[:_MAX_REASON],
            name=printable(str(found["name"]))[:_MAX_REASON],
            created=float(found["created"]),
            ttl_s=float(found["ttl_s"]),
        )
    except (BadDocument, TypeError, KeyError, ValueError, OverflowError):
        return None
