# SPDX-License-Identifier: Apache-2.0
"""
Checks of addresses and folders that a service's settings name; those of the settings yield a line
for each error or warning.
"""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jitgen.errors import JitgenError
from jitgen.server.bucket import check_url
from jitgen.server.settings import ServiceSettings, is_loopback

_ENDPOINT = "AWS_ENDPOINT_URL"


def address(settings: ServiceSettings) -> Iterator[str]:
    """
    Yield why the service could not listen at its address, though not if something, perhaps this
    service, listens there now.
    """
    host, port = settings.listen.host, settings.listen.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        yield f"listen.host: {host} does not resolve: {getattr(error, 'strerror', None) or error}"
        return
    for family, kind, _, _, place in dict.fromkeys(found):
        try:
            with socket.socket(family, kind) as made:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind(place)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # perhaps by this service, which runs
                continue
            where = "listen.port" if error.errno == errno.EACCES else "listen.host"
            yield f"{where}: the service cannot listen at {host}:{port}: {error.strerror}"


def stores(settings: ServiceSettings) -> Iterator[str]:
    """
    Yield why the root, the folder of the service's own files or the shared store cannot be used.
    """
    root, state = settings.store.root, settings.state
    if why := unwritable(root):
        yield f"store.root: {why}"
    if why := unwritable(state):
        yield f"store.state: {why}"
    if root == state or root in state.parents or state in root.parents:
        yield (
            f"store.state: {state} must be outside of store.root, {root}, and the other way round: "
            "clearing the cache would remove revocations"
        )
    yield from _shared(settings.replicas.shared, root)


def _shared(url: str, root: Path) -> Iterator[str]:
    if not url:
        return
    try:
        check_url(url)
    except JitgenError as error:
        yield str(error)
        return
    if find_spec("obstore") is None:
        yield (
            f"replicas.shared: {url} needs the package obstore; run: pip install 'jitgen[remote]'"
        )
    parts = urlsplit(url)
    if parts.scheme == "file":
        folder = Path(unquote(parts.path))
        if why := unwritable(folder):
            yield f"replicas.shared: {why}"
        if folder == root:
            yield f"replicas.shared: {folder} is store.root; name a folder of its own"
    endpoint = os.environ.get(_ENDPOINT) if parts.scheme == "s3" else None
    if endpoint and (why := unresolved(endpoint)):
        yield f"replicas.shared: {_ENDPOINT}={endpoint}: {why}"


def unresolved(url: str) -> str:
    """Return why the host of `url` has no address; empty if it has one."""
    try:
        host = urlsplit(url).hostname
        if not host:
            return "it names no host"
        socket.getaddrinfo(host, None)
    except (OSError, ValueError) as error:
        return f"its host does not resolve: {getattr(error, 'strerror', None) or error}"
    return ""


def unwritable(path: Path) -> str:
    """
    Return why the folder `path` cannot be made or written; empty if it can be.

    Modes alone do not say so to root, nor what kind of file system it is: a folder is made and
    removed again.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # it is to be made; which part is no folder is said below
    except OSError as error:  # such as a name that is too long
        return f"{path} cannot be made or written: {error.strerror}"
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), Path("/"))
    if not there.is_dir():
        return f"{path} cannot be made or written, for {there} is no folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{path} cannot be made or written, for {there} cannot be written by you"
    try:
        Path(tempfile.mkdtemp(prefix=".jitgen-", dir=there)).rmdir()
    except OSError as error:
        why = error.strerror or error
        return f"{path} cannot be made or written, for no folder can be made in {there}: {why}"
    return ""


def open_tokens(settings: ServiceSettings) -> Iterator[str]:
    """Yield a warning if tokens would travel in the open between machines."""
    listen = settings.listen
    if settings.access.tokens is None or listen.certificate or is_loopback(listen.host):
        return
    yield (
        f"listen: tokens for {listen.host}:{listen.port} travel in the open, and clients send "
        "theirs over TLS alone; set listen.certificate and listen.certificate_key, or listen on "
        "127.0.0.1 behind a proxy that ends TLS"
    )
