# SPDX-License-Identifier: Apache-2.0
"""
The service's log: a JSON object a line on standard error, and the trace ids that connect lines.

A client that sends ``traceparent`` (W3C Trace Context) finds its trace id in every line that its
request caused: of the request, the queue and the compile. A request without one gets a new trace
id, which the response has.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
from typing import IO

from jitgen.support.text import printable

_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_MOST = 2000  # characters of a value


def trace_of(header: str | None) -> str:
    """Return the trace id in a ``traceparent``, or a new one."""
    match = _PARENT.fullmatch(header) if header else None
    if match is None or not match[1].strip("0"):
        return secrets.token_hex(16)
    return match[1]


def parent_of(trace: str) -> str:
    """Return the ``traceparent`` of a response."""
    return f"00-{trace}-{secrets.token_hex(8)}-01"


class Log:
    """
    Writes the log.

    Args:
        stream: Stream to which it writes; None for standard error.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream

    def event(self, event: str, *, level: str = "info", **fields: object) -> None:
        """Write one line; fields that are None or empty are left out."""
        line = {
            "time": round(time.time(), 3),
            "level": level,
            "event": event,
            **{name: _short(value) for name, value in fields.items() if value not in (None, "")},
        }
        stream = self._stream or sys.stderr
        try:
            stream.write(json.dumps(line, ensure_ascii=True, default=str) + "\n")
            stream.flush()
        except (OSError, ValueError):  # the reader of the log has gone; the service goes on
            return


def _short(value: object) -> object:
    return printable(value[:_MOST], keep="\n") if isinstance(value, str) else value
