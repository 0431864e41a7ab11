# SPDX-License-Identifier: Apache-2.0
"""Every file that decides about trust is read by `jitgen.ownership.files`."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

from jitgen.cli.trust_document import read_document
from jitgen.codegen.render import render
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.errors import JitgenError
from jitgen.remote.service import Fetching
from jitgen.runtime.override import of_folder
from jitgen.server.certificates import certificate_files
from jitgen.server.check import _trust
from jitgen.server.revocations import Revocations
from jitgen.server.settings import SECTIONS, Listen, ServiceSettings, Signing, Toolchain
from jitgen.server.settings import read_settings as read_service_settings
from jitgen.server.tokens import new_token, read_tokens
from jitgen.settings import settings
from jitgen.signing.keys import PrivateKey
from jitgen.support import values
from jitgen.support.documents import BadDocument
from jitgen.support.variables import TABLE

from .reading import READS, reads
from .test_layers import modules
from .trust_fakes import R1, V1, hosting

STRANGER = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
NAME = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a"


def _write(path: Path, content: bytes | str) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _key(path: Path) -> None:
    R1.save(path)


def _current(path: Path) -> object:
    with hosting(path.parent.parent.parent) as host:
        host.file.unlink()
        with settings.scope(trust=path):
            return host.process().current()


def _token(path: Path) -> object:
    server: Any = type("Server", (), {"url": "https://x", "is_confidential": True})
    with settings.scope(token_file=path):
        return Fetching(server, "ab" * 32, cast("Any", None), cast("Any", None))._token()


def _checked(path: Path) -> object:
    lines = list(_trust(ServiceSettings(signing=Signing(trust=path))))
    if lines:
        raise JitgenError(lines[0])
    return lines


def _certificates(path: Path) -> object:
    with certificate_files(Listen(certificate=path, certificate_key=path)) as found:
        return found


_SOURCE = render(*GroupedGemmConfig.parse(NAME)).text
_TOML = 'ui = true\n[access]\nanonymous = ["read"]\n'

READERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], None]]] = {
    "JITGEN_TRUST": (_current, lambda path: _write(path, V1)),
    "JITGEN_TOKEN_FILE": (_token, lambda path: _write(path, "secret")),
    "JITGEN_OVERRIDE": (
        lambda path: of_folder(path.parent),
        lambda path: _write(path, _SOURCE),
    ),
    "private key": (PrivateKey.load, _key),
    "trust commands": (read_document, lambda path: _write(path, V1)),
    "service settings": (read_service_settings, lambda path: _write(path, _TOML)),
    "tokens": (read_tokens, lambda path: _write(path, new_token("a", ("read",))[1])),
    "signing.trust": (
        lambda path: Revocations(path.parent.parent, path).trust,
        lambda path: _write(path, V1),
    ),
    "signing.trust, checked": (_checked, lambda path: _write(path, V1)),
    "revocations": (
        lambda path: Revocations(path.rename(path.with_name("revocations.json")).parent, None),
        lambda path: _write(path, '{"revoked": []}'),
    ),
    "certificates": (_certificates, lambda path: _write(path, "PEM")),
}
"""What reads a file, and what writes a good one."""


def _written(path: Path) -> None:
    path.chmod(0o666)


def _exchanged(path: Path) -> None:
    path.parent.chmod(0o777)


def _above(path: Path) -> None:
    path.parent.parent.chmod(0o777)


def _given_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def _in_their_folder(path: Path) -> None:
    os.chown(path.parent, STRANGER, STRANGER)


def _by_their_link(path: Path) -> None:
    path.rename(path.parent.parent / "aside")
    path.symlink_to("../aside")
    os.lchown(path, STRANGER, STRANGER)


ATTACKS = [
    _written,
    _exchanged,
    _above,
    *(pytest.param(one, marks=as_root) for one in (_given_away, _in_their_folder, _by_their_link)),
]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A path for a file, two folders below one that is ours."""
    folder = tmp_path / "home" / "conf"
    folder.mkdir(parents=True, mode=0o700)
    yield folder / "file.py"
    for each in (folder, folder.parent):
        os.chown(each, os.geteuid(), os.getegid())
        each.chmod(0o700)


@pytest.mark.parametrize("reader", READERS)
def test_a_good_file_is_read(reader: str, path: Path) -> None:
    read, write = READERS[reader]
    write(path)

    assert read(path) is not None or reader == "tokens"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda one: one.__name__)
def test_one_that_others_decide_is_refused(
    reader: str, attack: Callable[[Path], None], path: Path
) -> None:
    """
    Most looked at the mode of the file alone, by its path, and then read that path; some looked at
    nothing. One message says which file or folder it is and what to do.
    """
    read, write = READERS[reader]
    write(path)
    attack(path)

    with pytest.raises((JitgenError, BadDocument)) as raised:
        read(path)

    said = str(raised.value)
    assert str(path.parent.parent) in said
    assert "can be written by" in said or f"user {STRANGER}" in said or "chmod 600" in said
    assert "run: chmod" in said or "a copy of your own" in said
    assert "\n" not in said


SETTINGS = {
    "cache_dir": "jitgen.cache.root walks there, by the same rules",
    "base": "likewise",
    "trust_shared": "only compared with",
    "trust": "JITGEN_TRUST",
    "token_file": "JITGEN_TOKEN_FILE",
    "override": "JITGEN_OVERRIDE",
    "record": "counts of calls, written; a reader names its file",
}
"""Every setting that is a path: which of `READERS` reads it, or why none need."""

SERVICE = {
    "listen.certificate": "certificates",
    "listen.certificate_key": "certificates",
    "listen.client_ca": "certificates",
    "store.root": "jitgen.cache.root walks there",
    "store.bundles": "each file is named by its digest",
    "store.state": "revocations",
    "store.lock": "a service only compares itself with it, and may refuse to start",
    "access.tokens": "tokens",
    "signing.key": "private key",
    "signing.socket": "a socket; what is signed there is checked by clients",
    "signing.trust": "signing.trust",
    "toolchains.python": "an interpreter that the operator names, started and not read",
}


def test_every_setting_that_is_a_path_is_decided_about() -> None:
    paths = {
        row.name for row in TABLE if row.parse in (values.absolute, values.file, values.folders)
    }
    service = {
        f"{section}.{spec.name}"
        for section, kind in {**SECTIONS, "toolchains": Toolchain}.items()
        for spec in fields(kind)
        if spec.metadata["read"] is values.path
    }

    assert paths == SETTINGS.keys()
    assert service == SERVICE.keys()


def test_no_other_place_reads_files() -> None:
    """
    A new place that opens a file says here what it reads, and why that decides nothing about
    trust; what does comes through `jitgen.ownership.files`.
    """
    found = {f"{name}:{place}" for name, tree in modules() for place in reads(tree)}

    assert found - READS.keys() == set()
    assert READS.keys() - found == set()


def test_no_place_that_reads_files_knows_of_what_is_trusted() -> None:
    """`settings.trust` and `signing.key` are passed to what reads them rightly."""
    trusted = {name for name, how in SETTINGS.items() if how in READERS}
    service = {tuple(name.split(".")) for name, how in SERVICE.items() if how in READERS}
    wrong = []
    for name, tree in modules():
        for place, function in reads(tree).items():
            for node in ast.walk(function):
                if not isinstance(node, ast.Attribute):
                    continue
                owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
                if (owner == "settings" and node.attr in trusted) or (owner, node.attr) in service:
                    wrong.append(f"{name}:{place} reads {owner}.{node.attr}")

    assert wrong == []
