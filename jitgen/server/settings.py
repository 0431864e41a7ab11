# SPDX-License-Identifier: Apache-2.0
"""
What the operator of a compile service decides: one TOML file, read once, into frozen dataclasses.

Everything has a default but who may ask: a service without tokens refuses to start unless the file
says what strangers may do.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitgen.errors import SettingError
from jitgen.ownership.files import read_trusted
from jitgen.server.config_errors import (
    ConfigErrors,
    choice,
    choices,
    flag,
    of,
    path,
    seconds,
    short,
    size,
    text,
    whole,
)
from jitgen.support.documents import BadDocument, parse_toml

SCOPES = ("read", "compile", "write", "admin")
"""What a token may be good for; none of them includes another."""

_MAX_BYTES = 2**16
_WEEK_S = 7 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where the service listens, and how it proves itself."""

    host: str = of(text, "127.0.0.1", "address or name to listen on")
    port: int = of(whole(0, 65535), 8555, "port; 0: any that is free, told in the log")
    certificate: Path | None = of(path, None, "TLS certificate chain, PEM")
    certificate_key: Path | None = of(path, None, "its private key, PEM")
    client_ca: Path | None = of(
        path, None, "authorities of client certificates, which then must be"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where entries are kept."""

    root: Path = of(path, Path("/var/lib/jitgen/cache"), "root of the store, as JITGEN_CACHE_DIR")
    limit: int = of(
        size, 20 * 2**30, "size above which the least recently used entries go; 0: none"
    )
    memory: int = of(size, 128 * 2**20, "bytes of packed entries kept in memory")
    bundles: Path | None = of(path, None, "folder of bundles to serve, DIGEST.tar each")
    state: Path | None = of(path, None, "folder of what the service itself writes; beside the root")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may ask."""

    tokens: Path | None = of(path, None, "file of hashed tokens; read again on SIGHUP")
    anonymous: tuple[str, ...] = of(choices(*SCOPES), (), "scopes of requests without a token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is done at a time; what is beyond is refused at once and never kept waiting."""

    jobs: int = of(whole(1, 10**5), 1000, "kernels waiting or compiled at a time")
    per_token: int = of(whole(1, 10**5), 500, "the same, of one token; beyond: 429")
    per_arch: int = of(whole(1, 10**5), 1000, "the same, for one target; beyond: 503")
    wait_s: float = of(seconds(0, 3600), 300.0, "the longest wait that a request may ask for")
    compile_s: float = of(seconds(1, 3600), 300.0, "how long one compile may take")
    failure_s: float = of(seconds(0, 52 * _WEEK_S), 86400.0, "how long a refusal is remembered")
    requests: int = of(whole(1, 10**5), 1000, "requests of one token at a time; beyond: 429")
    streams: int = of(whole(1, 10**5), 100, "event streams of one token at a time; beyond: 429")
    stream_s: float = of(seconds(1, 86400), 3600.0, "how long an event stream may last")
    connections: int = of(
        whole(1, 10**5), 2000, "connections at a time; an idle one makes room, beyond: 503"
    )
    per_address: int = of(
        whole(0, 10**5), 1000, "the same, of one address (a proxy or NAT is one); 0: no such bound"
    )
    grace_s: float = of(seconds(0, 3600), 20.0, "how long a shutdown waits for what is under way")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """One virtual environment to compile in."""

    name: str = of(short, "default", "what the log, metrics and pages call it")
    python: Path | None = of(path, None, "its interpreter; the service's own where left out")
    jobs: int = of(whole(0, 1024), 0, "compile processes at a time; 0: by cores and memory")
    confine: str = of(
        choice("best", "require", "off"),
        "best",
        "its processes have no network or key: best (if that goes), require, off",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """Who vouches for what is compiled here."""

    key: Path | None = of(path, None, "file of the signing key: the signer is started with it")
    socket: Path | None = of(path, None, "socket of a signer that runs as another user")
    builder: str = of(short, "jitgen-service", "name of this service in what it signs")
    gate: str = of(
        choice("off", "emulator"),
        "off",
        "off or emulator: what GPU kernels must pass before they are signed",
    )
    gate_s: float = of(seconds(1, 36000), 1800.0, "how long that may take for one kernel")
    trust: Path | None = of(path, None, "trust document to hand out, signed by the root key")

    @property
    def is_on(self) -> bool:
        """Whether anything is signed."""
        return self.key is not None or self.socket is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploads:
    """What becomes of entries that somebody else built."""

    accept: str = of(
        choice("off", "unattested", "rebuild"),
        "off",
        "off, unattested (kept apart and unsigned) or rebuild (compiled here, and that is signed)",
    )
    limit: int = of(size, 2**30, "size above which the least recently used uploads go; 0: none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """What several services share."""

    shared: str = of(text, "", "URL of a bucket or folder for entries and leases, file:///... say")
    name: str = of(short, "", "this one's name among them; host and process where left out")
    lease_s: float = of(seconds(1, 3600), 60.0, "a lease ends so long after its last renewal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What is written to standard error, a JSON object a line."""

    requests: str = of(
        choice("all", "work", "errors"),
        "work",
        "which requests: all, work (not mere reads) or errors",
    )


SECTIONS: dict[str, type[Any]] = {
    "listen": Listen,
    "store": Storage,
    "access": Access,
    "limits": Limits,
    "signing": Signing,
    "uploads": Uploads,
    "replicas": Replicas,
    "log": Log,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The whole of it, a table of the file each; ``toolchains`` is an array of tables."""

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
        """The folder of what the service itself writes."""
        return self.store.state or self.store.root.with_name(self.store.root.name + "-service")


def read_settings(file: Path) -> ServiceSettings:
    """
    Return what `file` says.

    Raises:
        SettingError: It cannot be read, others can write to it or put another one there, or
            something in it is wrong: a line for each mistake.
    """
    try:
        document = parse_toml(read_trusted(file, _MAX_BYTES), max_bytes=_MAX_BYTES)
    except OSError as error:
        raise SettingError(f"{file} cannot be read: {error.strerror or error}") from error
    except BadDocument as error:
        raise SettingError(f"{file}: {error}") from error
    found, errors = parse_settings(document)
    if errors:
        raise SettingError("\n".join(f"{file}: {line}" for line in errors))
    return found


def parse_settings(document: dict[str, Any]) -> tuple[ServiceSettings, list[str]]:
    """Return the settings in `document`, and a line for each mistake."""
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
        sections["ui"] = flag(document.get("ui", True))
    except ValueError as error:
        errors.add("ui", f"must be {error}")
    found = ServiceSettings(**sections)
    _check_together(found, errors)
    return found, errors.lines


def _toolchains(values: Any, errors: ConfigErrors) -> tuple[Toolchain, ...]:
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
        "nobody may ask: name a file of tokens (jitgen token makes one), or anonymous scopes",
    ),
    (
        "access.anonymous",
        lambda s: {"write", "admin"} & set(s.access.anonymous) and not _is_loopback(s.listen.host),
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
"""What is right by itself and wrong beside the rest: where, when, and what to do."""


def _check_together(found: ServiceSettings, errors: ConfigErrors) -> None:
    is_read = not errors.lines  # else a default stands where something was wrong
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
    }
    for name, file in files.items():
        if file is not None and not file.is_file():
            errors.add(name, f"there is no file {file}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
