# SPDX-License-Identifier: Apache-2.0
"""
The service's log: a JSON object a line, on standard error, and the trace ids that tie lines.

A client that sends ``traceparent`` (W3C Trace Context) finds its trace id in every line that its
request caused: at the door, in the queue, in the compile. One that sends none is given one, and
told it in the answer.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
from typing import IO, Any

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
    """Return the ``traceparent`` of an answer."""
    return f"00-{trace}-{secrets.token_hex(8)}-01"


class Log:
    """
    Where lines go.

    Args:
        stream: None for standard error.
    """

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream

    def event(self, event: str, *, level: str = "info", **fields: Any) -> None:
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
        except (OSError, ValueError):  # nobody reads any more: work goes on
            return


def _short(value: Any) -> Any:
    return printable(value[:_MOST], keep="\n") if isinstance(value, str) else value
