# SPDX-License-Identifier: Apache-2.0
"""
The client of the compile service.

``GET /v1/entries/<key>`` returns an existing entry. ``POST /v1/compile`` sends a config, never a
source; the service waits a little, and otherwise names a job, which is polled at the interval that
the service asks for. After any answer without a kernel, this process compiles it itself.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from jitgen.cache.folder import Damaged
from jitgen.errors import SettingError
from jitgen.events import warn_once
from jitgen.ownership.files import opened
from jitgen.remote import wire
from jitgen.remote.budget import ANSWER_S
from jitgen.remote.http import Answer, Server, Session
from jitgen.remote.outcomes import (
    Corrupt,
    Miss,
    NotFound,
    Rejected,
    Revoked,
    Unauthorized,
    Unreachable,
    Untrusted,
)
from jitgen.remote.refresh import refresh
from jitgen.settings import settings
from jitgen.signing.trust import MAX_BYTES
from jitgen.support.documents import BadDocument, canonical_json, parse_json
from jitgen.support.text import one_line, shown

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.remote.request_policy import RequestPolicy, Wanted
    from jitgen.runtime.spec import KernelSpec

FAILED_S = 86400.0
"""
Seconds for which a service is not asked again after the compiler refused a kernel: the refusal
holds for the toolchain, which is part of the key.
"""

JOB_LOST_S = 60.0
"""Seconds for which a service is not asked again after it lacked a resource or lost a job."""

WAIT_S = 10.0
"""How long one request waits for a compile: most are done by then."""

_PROCESS = os.urandom(8).hex()
"""First half of every trace id of this process; the second is the beginning of the kernel's key."""

_MAX_TEXT = 2**16
_MAX_TOKEN = 4096
_TARS = (wire.TAR, "application/x-tar")


class Fetching:
    """
    Requests to a service about one kernel.

    Args:
        server: The service.
        key: The kernel's key.
        policy: The policy that makes the requests.
        store: The store whose trust document is renewed if the service has a later one.
    """

    def __init__(self, server: Server, key: str, policy: RequestPolicy, store: Store) -> None:
        self._server = server
        self._key = key
        self._policy = policy
        self._store = store
        self._trace = _PROCESS + key[:16]

    def fetched(self, wanted: Wanted) -> wire.Packed | Miss:
        """Return the service's entry, or a miss."""
        session = self._server.session()
        return self._policy.ask(wanted, lambda: self._refreshed(session), session.cancel)

    def described(self, wanted: Wanted) -> dict[str, object] | Miss:
        """Return the service's ``/v1/info``, or a miss."""
        session = self._server.session()
        return self._policy.ask(wanted, lambda: self._info(session), session.cancel, purpose="info")

    def _info(self, session: Session) -> dict[str, object]:
        answer = session.request("GET", "v1/info", _MAX_TEXT, headers=self._headers())
        if answer.status != 200:
            self._raise_for(answer)
        return _document(answer)

    def _refreshed(self, session: Session) -> wire.Packed:
        refresh(self._store, self._server.url, lambda: self._trust(session))
        return self._fetch(session)

    def _trust(self, session: Session) -> bytes:
        answer = session.request("GET", "v1/trust", MAX_BYTES, headers=self._headers())
        if answer.status != 200:
            raise NotFound(f"HTTP {answer.status}")
        return answer.body

    def _fetch(self, session: Session) -> wire.Packed:
        # Uploads of clients have no signature, so they are asked for only without verification.
        query = "?unattested=1" if settings.verify == "off" else ""
        answer = session.request(
            "GET",
            f"v1/entries/{self._key}{query}",
            wire.MAX_BYTES,
            headers=self._headers() | {"Accept": wire.TAR, "Accept-Encoding": "zstd"},
        )
        if answer.status == 404:
            raise NotFound("not compiled yet")
        return self._packed(answer)

    def _packed(self, answer: Answer) -> wire.Packed:
        """Return the checked entry in an answer; raises a RemoteError for any other answer."""
        if answer.status != 200:
            self._raise_for(answer)
        kind = answer.headers.get("content-type", "").split(";")[0].strip()
        if kind not in _TARS:
            raise Unreachable(f"an answer of type {shown(kind)} instead of an entry")
        coding = answer.headers.get("content-encoding", "identity")
        try:
            if coding not in ("zstd", "identity"):
                raise Damaged(f"it is encoded as {shown(coding)}")
            data = wire.decompress(answer.body) if coding == "zstd" else answer.body
            packed = wire.unpack(data, self._key)
        except Damaged as error:
            raise Corrupt(str(error)) from None
        if reason := self._policy.judge(packed.record, packed.signatures):
            raise Untrusted(reason)
        return packed

    def _raise_for(self, answer: Answer) -> None:
        status, said = answer.status, _reason(answer, "")
        words = f"HTTP {status}: {_MEANINGS.get(status, 'an answer that was not foreseen')}"
        words = f"{words} ({said})" if said else words
        if status >= 500:  # to find it in the service's log
            words = f"{words}, trace {self._trace}"
        if status in (401, 403):
            raise Unauthorized(words)
        if status == 410:
            raise Revoked(said.removeprefix("it is revoked: ") or "no reason given")
        raise Rejected(words, FAILED_S if status == 424 else None)

    def _headers(self) -> dict[str, str]:
        headers = {"traceparent": f"00-{self._trace}-{os.urandom(8).hex()}-01"}
        token = self._token()
        return headers | ({"Authorization": f"Bearer {token}"} if token else {})

    def _token(self) -> str:
        """
        Return the token, read each time, since it may be rotated; empty if there is none, or others
        could read it on its way to the service.
        """
        path = settings.token_file
        if path is None:
            return ""
        if not self._server.is_confidential:
            warn_once(
                f"token {self._server.url}",
                "the token of JITGEN_TOKEN_FILE is not sent to %s: it could be read on the way; "
                "use https://",
                self._server.url,
            )
            return ""
        try:
            with opened(path) as file:
                token = file.read(_MAX_TOKEN).decode("ascii").strip()
                is_told = file.is_open_to_readers
        except (BadDocument, OSError, ValueError) as error:
            raise SettingError(f"JITGEN_TOKEN_FILE={path} is not used: {error}") from None
        if is_told:
            warn_once(
                f"readers of {path}",
                "others on this machine can read the token in %s; unless it was copied, run: "
                "chmod 600 %s",
                path,
                path,
            )
        if not token.isprintable() or " " in token:
            raise SettingError(f"JITGEN_TOKEN_FILE={path} holds more than one token")
        return token


class Compiling(Fetching):
    """
    Requests to a service to compile one kernel.

    Args:
        server: The service.
        spec: The kernel.
        policy: The policy that makes the requests.
        store: The store whose trust document is renewed if the service has a later one.
    """

    def __init__(
        self, server: Server, spec: KernelSpec, policy: RequestPolicy, store: Store
    ) -> None:
        super().__init__(server, spec.key, policy, store)
        self._spec = spec

    def compiled(self) -> wire.Packed | Miss:
        """Have the service compile the kernel and wait; returns the entry, or a miss."""
        session = self._server.session()
        return self._policy.ask(
            self._spec,
            lambda: self._compile(session),
            session.cancel,
            purpose="compile",
            seconds=settings.compile_timeout,
        )

    def _compile(self, session: Session) -> wire.Packed:
        document = {
            "config": self._spec.config.to_json(),
            "arch": str(self._spec.arch),
            "key": self._spec.key,
            "toolchain": self._spec.document["toolchain"],
        }
        headers = {
            "Accept": wire.TAR,
            "Accept-Encoding": "zstd",
            "Content-Type": "application/json",
            "Prefer": f"wait={WAIT_S:.0f}",
        }
        answer = session.request(
            "POST",
            "v1/compile",
            wire.MAX_BYTES,
            headers=self._headers() | headers,
            body=canonical_json(document).encode("ascii"),
            answer_s=WAIT_S + ANSWER_S,
        )
        if answer.status == 202:
            self._await(session, answer)
            return self._fetch(session)
        return self._packed(answer)

    def _await(self, session: Session, answer: Answer) -> None:
        """Poll the job that `answer` names until it is done."""
        path = _job_path(answer.headers.get("location", ""), self._server, self._spec.key)
        end = time.monotonic() + settings.compile_timeout
        while time.monotonic() < end:
            time.sleep(min(answer.retry_s, max(0.0, end - time.monotonic())))
            answer = session.request(
                "GET", path, _MAX_TEXT, headers=self._headers() | {"Accept": "application/json"}
            )
            if answer.status in (401, 403):
                self._raise_for(answer)
            if answer.status != 200:  # the service was restarted, say, and does not know the job
                raise Rejected(_reason(answer, f"HTTP {answer.status} of its job"), JOB_LOST_S)
            document = _document(answer)
            if document.get("state") == "done":
                return
            if document.get("state") == "failed":
                if document.get("code") == "E_REVOKED":
                    raise Revoked(
                        _reason(answer, "no reason given").removeprefix("it is revoked: ")
                    )
                is_certain = document.get("code") in _CERTAIN
                seconds = FAILED_S if is_certain else JOB_LOST_S
                raise Rejected(_reason(answer, "the compile failed"), seconds)
        raise Unreachable("the service is still compiling it")


_CERTAIN = ("E_COMPILE", "E_GATE")
"""Codes of jobs that would fail again; others lacked a resource."""

_MEANINGS = {
    400: "the service does not understand the request",
    401: "it wants a token, see JITGEN_TOKEN_FILE",
    403: "it does not accept the token of JITGEN_TOKEN_FILE",
    404: "it does not have it",
    409: "it has another toolchain",
    410: "the entry is revoked",
    422: "it takes the config for illegal",
    424: "it failed to compile before",
}


def _job_path(location: str, server: Server, key: str) -> str:
    """Return the path of a job; a location on another server is ignored."""
    fallback = f"v1/jobs/{key}"
    parts = urlsplit(location)
    if not location or parts.netloc or parts.scheme:
        return fallback
    base = server.path_of("")
    return location.removeprefix(base) if location.startswith(base) else fallback


def _document(answer: Answer) -> dict[str, object]:
    try:
        document = parse_json(answer.body, max_bytes=_MAX_TEXT)
    except BadDocument:
        return {}
    return document if isinstance(document, dict) else {}


def _reason(answer: Answer, otherwise: str) -> str:
    """
    Return the reason in an answer in one line, at most 300 characters of it; `otherwise` if it has
    none.
    """
    document = _document(answer)
    for name in ("reason", "error", "detail", "message", "difference", "differs"):
        if document.get(name):
            found = document[name]
            return one_line(found if isinstance(found, str) else json.dumps(found))[:300]
    return otherwise
