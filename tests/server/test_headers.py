# SPDX-License-Identifier: Apache-2.0
"""Headers: one of each, at the head of a request, and nowhere else."""

from __future__ import annotations

import socket
import time

import pytest

from jitgen.server.endpoint import headers_of
from jitgen.server.request import HTTPError
from tests.service.running import Running

HEAD = "GET /v1/info HTTP/1.1\r\nHost: a\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
WRONG = "Authorization: Bearer x\r\n"


def status(service: Running, *packets: str) -> int:
    """Return the status that a request gets, sent in so many packets."""
    host, port = service.url.removeprefix("http://").split(":")
    right = f"Authorization: Bearer {service.tokens['read']}\r\n"
    with socket.create_connection((host, int(port)), 10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for packet in packets:
            client.sendall(packet.replace("RIGHT\r\n", right).encode())
            time.sleep(0.05 if len(packets) > 1 else 0)
        return int(client.recv(12).removeprefix(b"HTTP/1.1 "))


@pytest.mark.parametrize(
    "packets",
    [
        (f"{HEAD}{CHUNKED}0\r\nRIGHT\r\n\r\n",),
        (f"{HEAD}{WRONG}{CHUNKED}0\r\nRIGHT\r\n\r\n",),
        (f"{HEAD}{CHUNKED}", "0\r\nRIGHT\r\n\r\n"),
    ],
    ids=["alone", "beside one at the head", "in a packet of its own"],
)
def test_a_token_in_a_trailer_is_none(service: Running, packets: tuple[str, ...]) -> None:
    """In one packet with the head it was a header, and took the place of the one at the head."""
    assert status(service, *packets) == 401


@pytest.mark.parametrize("two", [f"{WRONG}RIGHT\r\n", f"RIGHT\r\n{WRONG}", "RIGHT\r\nRIGHT\r\n"])
def test_two_authorization_headers_are_refused(service: Running, two: str) -> None:
    """The second counted, where a proxy in front may have looked at the first."""
    assert status(service, f"{HEAD}{two}\r\n") == 400
    assert status(service, f"{HEAD}RIGHT\r\n\r\n") == 200


@pytest.mark.parametrize("hosts", ["", "Host: a\r\nHost: a\r\n"], ids=["none", "two"])
@pytest.mark.parametrize("path", ["/livez", "/v1/none"])
def test_a_request_names_one_host(service: Running, path: str, hosts: str) -> None:
    """RFC 9112, 3.2: a server must refuse what names none, or two. They were answered."""
    assert status(service, f"GET {path} HTTP/1.1\r\n{hosts}\r\n") == 400


def test_an_unknown_transfer_coding_is_refused(service: Running) -> None:
    """Its body was read as if it were not encoded."""
    coded = "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    token = service.tokens["compile"]
    head = f"POST /v1/compile HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n"

    assert status(service, head + coded) == 501


def test_lines_of_a_list_are_one_list() -> None:
    """Of two lines ``Accept-Encoding`` the second alone was read."""
    lines = [(b"host", b"a"), (b"accept-encoding", b"gzip"), (b"accept-encoding", b"zstd")]

    assert headers_of(lines) == {b"host": b"a", b"accept-encoding": b"gzip, zstd"}
    assert headers_of([], "1.0") == {}
    with pytest.raises(HTTPError, match="no Host"):
        headers_of([])
