# SPDX-License-Identifier: Apache-2.0
"""
The headers of a request, each name once.

HTTP allows a list to be sent as several lines of one name, which mean the same as one line with
commas (RFC 9110, 5.3). ``Authorization`` and ``Host`` may occur only once: with two, a proxy and
the service might each use a different one. Trailers after a body are dropped where the connection
is read (`jitgen.server.http_limits`).
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgen.server.request import HTTPError

_SINGLE = (b"authorization", b"host")


def headers_of(lines: Sequence[tuple[bytes, bytes]], version: str = "1.1") -> dict[bytes, bytes]:
    """
    Return headers by their name in lower case.

    Args:
        lines: Names in lower case and values, as the server read them.
        version: The HTTP version. From 1.1 on a request must have a Host (RFC 9112, 3.2).

    Raises:
        HTTPError: A header that must be unique occurs twice, or there is no ``Host``.
    """
    headers = dict(lines)
    if len(headers) != len(lines):
        headers = _merged(lines)
    if b"host" not in headers and version != "1.0":
        raise _malformed("the request has no Host header")
    return headers


def _merged(lines: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in lines:
        if name in headers and name in _SINGLE:
            raise _malformed(f"the request has two {name.decode('ascii').title()} headers")
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def _malformed(reason: str) -> HTTPError:
    return HTTPError(400, "E_HEADERS", reason, {"Connection": "close"})
