# SPDX-License-Identifier: Apache-2.0
"""
The settings of a compile service: one TOML file, read once into frozen dataclasses.

Each setting has a default except access: a service without tokens refuses to start unless
``access.anonymous`` names the scopes of requests without a token.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

from jitgen.errors import SettingError
from jitgen.server.config_errors import ConfigErrors, read_toml, short
from jitgen.support.codec import of
from jitgen.support.frozen import frozen
from jitgen.support.values import (
    boolean,
    choice,
    choices,
    duration,
    integer,
    parse_size,
    path,
    text,
)

SCOPES = ("read", "compile", "write", "admin")
"""What a token may allow; no scope includes another."""

_MAX_BYTES = 2**16
_WEEK_S = 7 * 86400.0


@frozen
class Listen:
    """Settings of the address to listen on, and of TLS."""

    host: str = of(text, "127.0.0.1", "address or name to listen on")
    port: int = of(integer(0, 65535), 8555, "port; 0: any free one, which the log names")
    certificate: Path | None = of(path, None, "TLS certificate chain, PEM")
    certificate_key: Path | None = of(path, None, "its private key, PEM")
    client_ca: Path | None = of(
        path,
        None,
        "authorities, one of which must certify each client",
    )


@frozen
class Storage:
    """Settings of the store: its disk, and the memory for entries."""

    root: Path = of(path, Path("/var/lib/jitgen/cache"), "root of the store, like JITGEN_CACHE_DIR")
    limit: int = of(
        parse_size,
        20 * 2**30,
        "size above which least recently used entries are removed; 0: no limit",
    )
    memory: int = of(parse_size, 128 * 2**20, "size of the packed entries cached in memory")
    bundles: Path | None = of(path, None, "folder of bundles to serve, each a file DIGEST.tar")
    state: Path | None = of(
        path, None, "folder for the service's own files; default: the root's path with -service"
    )
    lock: Path | None = of(
        path, None, "lock (jitgen lock) whose kernels the store must have, else it does not start"
    )


@frozen
class Access:
    """Settings of access: tokens, and requests without one."""

    tokens: Path | None = of(path, None, "file of hashed tokens; SIGHUP reads it again")
    anonymous: tuple[str, ...] = of(choices(*SCOPES), (), "scopes of requests without a token")


@frozen
class Limits:
    """Limits on simultaneous work; a request beyond a limit is refused at once."""

    jobs: int = of(integer(1, 10**5), 1000, "kernels queued or compiling at a time; beyond: 503")
    per_token: int = of(integer(1, 10**5), 500, "the same for one token; beyond: 429")
    per_arch: int = of(integer(1, 10**5), 1000, "the same for one target; beyond: 503")
    wait_s: float = of(duration(0, 3600), 300.0, "longest wait that a request may ask for")
    compile_s: float = of(duration(1, 3600), 300.0, "time limit of one compile")
    failure_s: float = of(
        duration(0, 52 * _WEEK_S),
        86400.0,
        "how long a kernel that the compiler refused is not tried again",
    )
    requests: int = of(integer(1, 10**5), 1000, "requests of one token at a time; beyond: 429")
    streams: int = of(integer(1, 10**5), 100, "event streams of one token at a time; beyond: 429")
    stream_s: float = of(duration(1, 86400), 3600.0, "how long an event stream may last")
    connections: int = of(
        integer(1, 10**5),
        2000,
        "connections at a time; beyond: the longest idle one is closed, else 503",
    )
    per_address: int = of(
        integer(0, 10**5),
        1000,
        "the same for one address (a proxy or NAT is one address); 0: no limit",
    )
    grace_s: float = of(duration(0, 3600), 20.0, "how long a shutdown waits for running compiles")


@frozen
class Toolchain:
    """Settings of one virtual environment to compile in."""

    name: str = of(short, "default", "its name in the log, metrics and pages")
    python: Path | None = of(path, None, "its Python interpreter; default: the service's own")
    jobs: int = of(integer(0, 1024), 0, "compile processes at a time; 0: by cores and memory")
    confine: str = of(
        choice("best", "require", "off"),
        "best",
        "isolation of its processes from network and keys: best (if possible), require, off",
    )


@frozen
class Signing:
    """The key that signs entries, the check of a kernel before that, and the trust document."""

    key: Path | None = of(
        path, None, "file of the signing key, which only the signer process reads"
    )
    socket: Path | None = of(path, None, "socket of a signer that runs as another user")
    builder: str = of(
        short, "jitgen-service", "name of this service in the statements that it signs"
    )
    gate: str = of(
        choice("off", "emulator"),
        "off",
        "what verifies a GPU kernel before it is signed: off (nothing) or emulator",
    )
    gate_s: float = of(duration(1, 36000), 1800.0, "time limit of that verification for one kernel")
    trust: Path | None = of(path, None, "trust document to hand out, signed by the root key")

    @property
    def is_on(self) -> bool:
        """Whether the service signs entries."""
        return self.key is not None or self.socket is not None


@frozen
class Uploads:
    """Settings of entries that clients upload."""

    accept: str = of(
        choice("off", "unattested", "rebuild"),
        "off",
        "off, unattested (stored apart, unsigned) or rebuild (compile here and sign that)",
    )
    limit: int = of(
        parse_size,
        2**30,
        "size above which least recently used uploads are removed; 0: no limit",
    )


@frozen
class Replicas:
    """Settings of a service that is one of several replicas."""

    shared: str = of(
        text, "", "URL of a bucket or folder for entries and leases, such as file:///..."
    )
    name: str = of(short, "", "name of this service among them; default: host and process")
    lease_s: float = of(duration(1, 3600), 60.0, "lifetime of a lease after its last renewal")


@frozen
class Log:
    """Settings of the log on standard error, a JSON object a line."""

    requests: str = of(
        choice("all", "work", "errors"),
        "work",
        "which requests are logged: all, work (all but reads) or errors",
    )


SECTIONS: dict[str, type[object]] = {
    "listen": Listen,
    "store": Storage,
    "access": Access,
    "limits": Limits,
    "signing": Signing,
    "uploads": Uploads,
    "replicas": Replicas,
    "log": Log,
}


@frozen
class ServiceSettings:
    """
    The settings file of a service: a field for each table; ``toolchains`` is an array of tables.
    """

    listen: Listen = field(default_factory=Listen)
    store: Storage = field(default_factory=Storage)
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    signing: Signing = field(default_factory=Signing)
    uploads: Uploads = field(default_factory=Uploads)
    replicas: Replicas = field(default_factory=Replicas)
    log: Log = field(default_factory=Log)
    toolchains: tuple[Toolchain, ...] = (Toolchain(),)
    ui: bool = True

    @property
    def state(self) -> Path:
        """The folder for the service's own files."""
        return self.store.state or self.store.root.with_name(self.store.root.name + "-service")


def read_settings(file: Path) -> ServiceSettings:
    """
    Return the settings in `file`.

    Raises:
        SettingError: It cannot be read, other users can write or replace it, or some of its
            settings are wrong: a line for each.
    """
    document = read_toml(file, _MAX_BYTES)
    found, errors = parse_settings(document)
    if errors:
        raise SettingError("\n".join(f"{file}: {line}" for line in errors))
    return found


def parse_settings(document: dict[str, object]) -> tuple[ServiceSettings, list[str]]:
    """Return the settings in `document`, and a line for each error."""
    errors = ConfigErrors()
    allowed = (*SECTIONS, "toolchains", "ui")
    for name in document:
        if name not in allowed:
            errors.add(name, f"is not known; allowed: {', '.join(allowed)}")
    sections: dict[str, Any] = {
        name: errors.table(kind, document.get(name, {}), name) for name, kind in SECTIONS.items()
    }
    sections["toolchains"] = _toolchains(document.get("toolchains", [{}]), errors)
    try:
        sections["ui"] = boolean(document.get("ui", True))
    except ValueError as error:
        errors.add("ui", f"must be {error}")
    found = ServiceSettings(**sections)
    _check_together(found, errors)
    return found, errors.lines


def _toolchains(values: object, errors: ConfigErrors) -> tuple[Toolchain, ...]:
    if not isinstance(values, list) or not values:
        errors.add("toolchains", "must be one [[toolchains]] table or more")
        return (Toolchain(),)
    read = tuple(
        errors.table(Toolchain, each, f"toolchains[{index}]") for index, each in enumerate(values)
    )
    names = [each.name for each in read]
    for name in sorted({name for name in names if names.count(name) > 1}):
        errors.add("toolchains", f"two are called {name!r}; give each a name of its own")
    for each in read:
        if each.python is not None and not each.python.is_file():
            errors.add(f"toolchains {each.name}.python", f"there is no {each.python}")
    return read


_CONFLICTS: tuple[tuple[str, Callable[[ServiceSettings], object], str], ...] = (
    (
        "listen",
        lambda s: (s.listen.certificate is None) != (s.listen.certificate_key is None),
        "certificate and certificate_key go together",
    ),
    (
        "listen.client_ca",
        lambda s: s.listen.client_ca and s.listen.certificate is None,
        "needs a certificate of the service's own",
    ),
    (
        "access",
        lambda s: s.access.tokens is None and not s.access.anonymous,
        "every request would be refused: name a file of tokens (see jitgen token) or scopes",
    ),
    (
        "access.anonymous",
        lambda s: {"write", "admin"} & set(s.access.anonymous) and not is_loopback(s.listen.host),
        "write and admin are for tokens alone where other machines can connect",
    ),
    (
        "signing",
        lambda s: s.signing.key and s.signing.socket,
        "the signer is started with a key, or runs behind a socket; not both",
    ),
    (
        "signing.gate",
        lambda s: s.signing.gate != "off" and not s.signing.is_on,
        "is for what is signed: name a key or a socket",
    ),
    (
        "uploads.accept",
        lambda s: s.uploads.accept == "rebuild" and not s.signing.is_on,
        "rebuild is for signing: name a key or a socket",
    ),
    (
        "store.bundles",
        lambda s: s.store.bundles and not s.store.bundles.is_dir(),
        "there is no such folder",
    ),
)
"""Settings that contradict each other: where, the condition, and what to do."""


def _check_together(found: ServiceSettings, errors: ConfigErrors) -> None:
    is_read = not errors.lines  # else wrong settings have been replaced by defaults
    for where, is_wrong, what in _CONFLICTS:
        if is_read and is_wrong(found):
            errors.add(where, what)
    files = {
        "listen.certificate": found.listen.certificate,
        "listen.certificate_key": found.listen.certificate_key,
        "listen.client_ca": found.listen.client_ca,
        "access.tokens": found.access.tokens,
        "signing.key": found.signing.key,
        "signing.trust": found.signing.trust,
        "store.lock": found.store.lock,
    }
    for name, file in files.items():
        if file is not None and not file.is_file():
            errors.add(name, f"there is no file {file}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
