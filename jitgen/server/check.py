# SPDX-License-Identifier: Apache-2.0
"""Checks of the settings before a service starts: ``jitgen serve --check-config``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jitgen.cache import Store
from jitgen.compile import children
from jitgen.errors import JitgenError, SettingError
from jitgen.ownership.files import read_trusted
from jitgen.runtime.lock import read
from jitgen.server.certificates import check_certificates
from jitgen.server.check_places import address, open_tokens, stores
from jitgen.server.confine import asked, probe
from jitgen.server.descriptors import FEW_DESCRIPTORS, max_connections
from jitgen.server.lock import require_there
from jitgen.server.pools import IMPORT_SUPERVISOR
from jitgen.server.settings import ServiceSettings, Toolchain, read_settings
from jitgen.server.signer_client import NO_TRUST, greeting
from jitgen.server.tokens import read_tokens
from jitgen.signing.keys import PrivateKey
from jitgen.signing.standing import SHOWN, standing
from jitgen.signing.trust import MAX_BYTES, Trust, opened
from jitgen.support.documents import BadDocument

_PATIENCE_S = 60
_DESCRIBE = f"{IMPORT_SUPERVISOR}import json\nprint(json.dumps(supervisor.describe()))"
_HAS_NUMPY = "import importlib.util, sys; sys.exit(importlib.util.find_spec('numpy') is None)"


def config_errors(file: Path) -> list[str]:
    """Return a line for each error in `file` and in the files it names; nothing is written."""
    return checked(file)[0]


def checked(file: Path) -> tuple[list[str], list[str]]:
    """
    Return the errors in `file` and in the files it names, then the warnings, a line for each.

    A service starts in spite of a warning: a key that ends soon, say.
    """
    try:
        settings = read_settings(file)
    except SettingError as error:
        return str(error).splitlines(), []
    found = [line for each in _CHECKS for line in each(settings)]
    return found, [line for each in _WARNINGS for line in each(settings)]


def _tokens(settings: ServiceSettings) -> Iterator[str]:
    try:
        tokens = read_tokens(settings.access.tokens, settings.access.anonymous)
    except SettingError as error:
        yield from str(error).splitlines()
    else:
        if not len(tokens) and not settings.access.anonymous:
            yield f"access.tokens: {settings.access.tokens} has no token: every request is refused"
        elif len(tokens) and len(tokens.late()) == len(tokens) and not settings.access.anonymous:
            yield "access.tokens: every token has ended, so every request is refused"


def _late_tokens(settings: ServiceSettings) -> Iterator[str]:
    with suppress(SettingError):  # reported as an error
        tokens = read_tokens(settings.access.tokens, settings.access.anonymous)
        late = tokens.late()
        if late and (len(late) < len(tokens) or settings.access.anonymous):
            yield f"access.tokens: these have ended, and are refused: {', '.join(late)}"


def _keyid(settings: ServiceSettings) -> str:
    """Return the keyid of the signing key; empty without one. Raises JitgenError if it is bad."""
    signing = settings.signing
    if signing.key is not None:
        return PrivateKey.load(signing.key).keyid
    return "" if signing.socket is None else greeting(signing.socket)


def _trust_of(settings: ServiceSettings) -> Trust | None:
    """
    Return the trust document, None if the settings name none; raises JitgenError, OSError or
    BadDocument.
    """
    file = settings.signing.trust
    return None if file is None else opened(read_trusted(file, MAX_BYTES)).trust


def _key(settings: ServiceSettings) -> Iterator[str]:
    where = "signing.key" if settings.signing.key is not None else "signing.socket"
    try:
        keyid = _keyid(settings)
    except JitgenError as error:
        yield f"{where}: {error}"
        return
    with suppress(JitgenError, OSError, BadDocument):  # `_trust` reports these
        trust = _trust_of(settings)
        if not keyid or trust is None:
            return
        if keyid in {root.keyid for root in trust.roots}:
            yield (
                f"{where}: key {keyid[:SHOWN]} is a root key of the trust document, which signs no "
                "entries and must lie where nothing runs; make another with jitgen trust key"
            )
        elif (found := standing(keyid, trust)).is_refused:
            yield f"{where}: {found.reason}"


def _trust(settings: ServiceSettings) -> Iterator[str]:
    try:
        _trust_of(settings)
    except (JitgenError, OSError, BadDocument) as error:
        yield f"signing.trust: {error}"


def _ends_soon(settings: ServiceSettings) -> Iterator[str]:
    with suppress(JitgenError, OSError, BadDocument):  # reported as errors
        keyid, trust = _keyid(settings), _trust_of(settings)
        if keyid and trust is None:
            yield f"signing.trust: {NO_TRUST}"
        elif keyid and trust is not None:
            found = standing(keyid, trust)
            if found.reason and not found.is_refused:
                yield f"signing.trust: {found.reason}"


def _who_shares(settings: ServiceSettings) -> Iterator[str]:
    signing = settings.signing
    if settings.replicas.shared and signing.trust is None:
        what = "an entry with any signature" if signing.is_on else "any entry"
        yield f"replicas.shared: without signing.trust {what} is taken from there and handed out"


def _descriptors(settings: ServiceSettings) -> Iterator[str]:
    wanted = settings.limits.connections
    most = max_connections(wanted, is_raised=False)
    if most < wanted:
        yield f"limits.connections: {most} at the most; {FEW_DESCRIPTORS}"


def _certificate(settings: ServiceSettings) -> Iterator[str]:
    try:
        check_certificates(settings.listen)
    except (OSError, BadDocument) as error:
        yield f"listen: the certificate, its key or client_ca cannot be used: {error}"


def _store(settings: ServiceSettings) -> Iterator[str]:
    try:
        Store(settings.store.root, "rw")
    except JitgenError as error:
        yield f"store.root: {error}"


def _lock(settings: ServiceSettings) -> Iterator[str]:
    file = settings.store.lock
    if file is None:
        return
    try:
        store = Store(settings.store.root, "ro")
        require_there(read(file), file, store, ())
    except JitgenError as error:
        yield f"store.lock: {error}"


def _toolchains(settings: ServiceSettings) -> Iterator[str]:
    seen: dict[str, str] = {}
    for each in settings.toolchains:
        found = _described(each)
        if isinstance(found, str):
            yield f"toolchains {each.name}: {found}"
            continue
        versions = json.dumps(found["toolchain"], sort_keys=True)
        if other := seen.get(versions):
            yield f"toolchains {each.name}: it has the same versions as {other}; one is enough"
        seen[versions] = each.name


def _described(toolchain: Toolchain) -> dict[str, object] | str:
    """Return a toolchain's description of itself, or the reason why there is none."""
    command = (
        [str(toolchain.python), "-P", "-c", _DESCRIBE]
        if toolchain.python is not None
        else children.python("jitgen.server.check")
    )
    try:
        done = asked(command, _PATIENCE_S)
        found: dict[str, object] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    except ValueError:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        return f"{command[0]} is no Python with jitgen that works: {said}"
    return str(found["cannot"]) if found["cannot"] else found


def _gate(settings: ServiceSettings) -> Iterator[str]:
    """Yield the toolchains whose emulator, which needs numpy, would refuse every GPU kernel."""
    if settings.signing.gate == "off":
        return
    for each in settings.toolchains:
        python = str(each.python or sys.executable)
        with suppress(OSError, subprocess.SubprocessError):  # `_toolchains` reports these
            if asked([python, "-P", "-c", _HAS_NUMPY], _PATIENCE_S).returncode:
                yield (
                    f"signing.gate: toolchain {each.name} cannot verify kernels, since numpy is "
                    f"missing: {python} -m pip install 'jitgen[emulator]'"
                )


def _confinement(settings: ServiceSettings) -> Iterator[str]:
    if any(each.confine == "require" for each in settings.toolchains) and (reason := probe()):
        yield f"toolchains: compile processes cannot be confined here: {reason}"


_CHECKS = (
    _tokens,
    _key,
    _trust,
    address,
    _certificate,
    stores,
    _store,
    _lock,
    _toolchains,
    _gate,
    _confinement,
)


_WARNINGS = (_ends_soon, _late_tokens, open_tokens, _who_shares, _descriptors)


def main() -> None:
    """Print the description of this environment's toolchain."""
    from jitgen.server.supervisor import describe

    sys.stdout.write(json.dumps(describe()))
