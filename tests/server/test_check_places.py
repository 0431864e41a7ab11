# SPDX-License-Identifier: Apache-2.0
"""What `jitgen serve --check-config` finds out about addresses, stores, tokens and keys."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from jitgen.server import check
from jitgen.server.check_places import address, open_tokens, stores
from jitgen.server.settings import (
    Access,
    Listen,
    Replicas,
    ServiceSettings,
    Signing,
    Storage,
    Toolchain,
)
from jitgen.server.tokens import new_token
from jitgen.signing.keys import PrivateKey
from tests.service.trusting import ROOT, sealed

ANYWHERE = "0.0.0.0"  # noqa: S104  # what these checks are about


def settings(tmp_path: Path, **changes: object) -> ServiceSettings:
    """Return settings that are right, but for `changes`."""
    storage = Storage(root=tmp_path / "store")
    return replace(ServiceSettings(store=storage, listen=Listen(port=0)), **changes)


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("nowhere.invalid", "listen.host: nowhere.invalid does not resolve: "),
        ("bad..name", "listen.host: bad..name does not resolve: "),
        ("192.0.2.7", "listen.host: the service cannot listen at 192.0.2.7:0: Cannot assign"),
        ("127.0.0.1", ""),
        ("localhost", ""),
        (ANYWHERE, ""),
    ],
)
def test_an_address_that_is_none_of_this_machine(tmp_path: Path, host: str, says: str) -> None:
    """It used to be found out by the start, after the toolchains."""
    found = list(address(settings(tmp_path, listen=Listen(host=host, port=0))))

    assert [line[: len(says)] for line in found] == ([says] if says else [])


def test_a_port_that_is_taken_may_be_this_services_own(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert list(address(settings(tmp_path, listen=Listen(port=port)))) == []


@pytest.mark.parametrize(
    ("shared", "says"),
    [
        ("s3://", "it must name a bucket, as s3://bucket/prefix"),
        ("gs:///prefix", "it must name a bucket, as gs://bucket/prefix"),
        ("az://account", "it must name a container, as az://account/container"),
        ("file://relative/folder", "it must name a folder by its absolute path"),
        ("file:///", "it must name a folder by its absolute path"),
        ("http://bucket", "is no URL of a store; allowed: s3://, gs://, az://, file://"),
        ("s3://bucket/prefix", ""),
        ("az://account/container", ""),
    ],
)
def test_a_shared_store_that_cannot_be(tmp_path: Path, shared: str, says: str) -> None:
    found = list(stores(settings(tmp_path, replicas=Replicas(shared=shared))))

    assert len(found) == bool(says)
    assert says in "".join(found)
    assert all(line.startswith(f"replicas.shared: {shared} ") for line in found)


def test_folders_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    wrong = settings(
        tmp_path,
        store=Storage(root=tmp_path / "file", state=tmp_path / "file" / "state"),
        replicas=Replicas(shared=f"file://{tmp_path}/file/shared"),
    )
    found = list(stores(wrong))

    assert (
        f"store.root: {tmp_path}/file cannot be made or written, for {tmp_path}/file is no folder"
        in found
    )
    assert sum(line.startswith("store.state: ") for line in found) == 2, "and it is within the root"
    assert any(line.startswith("replicas.shared: ") and "is no folder" in line for line in found)


@pytest.mark.parametrize(
    ("root", "says"),
    [
        ("/proc/jitgen", "for no folder can be made in /proc: No such file or directory"),
        ("/tmp/" + 300 * "a", ": File name too long"),
    ],
)
def test_a_root_that_cannot_be(tmp_path: Path, root: str, says: str) -> None:
    """Root may write everywhere by the modes, so modes alone told it that all is right."""
    if os.geteuid() and root.startswith("/proc"):
        says = "cannot be written by you"
    found = list(stores(settings(tmp_path, store=Storage(root=Path(root), state=tmp_path / "x"))))

    assert [line.startswith(f"store.root: {root} cannot be made") for line in found] == [True]
    assert says in found[0]


def test_checking_leaves_nothing(tmp_path: Path) -> None:
    assert list(stores(settings(tmp_path))) == []
    assert list(tmp_path.iterdir()) == []


def test_the_folders_must_be_apart(tmp_path: Path) -> None:
    root = tmp_path / "store"
    wrong = settings(
        tmp_path,
        store=Storage(root=root, state=root / "own"),
        replicas=Replicas(shared=f"file://{root}"),
    )
    found = list(stores(wrong))

    assert any("must be outside of store.root" in line for line in found)
    assert any("is store.root; name a folder of its own" in line for line in found)
    assert list(stores(settings(tmp_path))) == []


def test_an_endpoint_that_does_not_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://nowhere.invalid:9000")
    (line,) = stores(settings(tmp_path, replicas=Replicas(shared="s3://bucket")))

    assert "AWS_ENDPOINT_URL=https://nowhere.invalid:9000: its host does not resolve" in line


@pytest.mark.parametrize(
    ("host", "certificate", "has_tokens", "warns"),
    [
        (ANYWHERE, None, True, True),
        ("10.1.2.3", None, True, True),
        (ANYWHERE, Path("/tls.pem"), True, False),
        (ANYWHERE, None, False, False),
        ("127.0.0.1", None, True, False),
        ("localhost", None, True, False),
    ],
)
def test_tokens_in_the_open(
    tmp_path: Path, host: str, certificate: Path | None, has_tokens: bool, warns: bool
) -> None:
    found = open_tokens(
        settings(
            tmp_path,
            listen=Listen(host=host, certificate=certificate),
            access=Access(tokens=tmp_path / "tokens.toml" if has_tokens else None),
        )
    )

    assert len(list(found)) == warns


def test_tokens_that_have_ended(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    late = new_token("old", ("read",))[1] + "not_after = 2020-01-01\n"
    file.write_text(late)
    file.chmod(0o600)
    mine = settings(tmp_path, access=Access(tokens=file))
    assert list(check._tokens(mine)) == [
        "access.tokens: every token has ended, so every request is refused"
    ]
    file.write_text(late + new_token("new", ("read",))[1])

    assert list(check._tokens(mine)) == []
    assert list(check._late_tokens(mine)) == [
        "access.tokens: these have ended, and are refused: old"
    ]


def test_a_root_key_signs_no_entries(tmp_path: Path) -> None:
    """The advice was to add it, which jitgen trust add refuses."""
    key = tmp_path / "root.pem"
    ROOT.save(key)
    trust = tmp_path / "trust.json"
    trust.write_bytes(sealed(PrivateKey.generate()))
    trust.chmod(0o644)
    (line,) = check._key(settings(tmp_path, signing=Signing(key=key, trust=trust)))

    assert "is a root key of the trust document, which signs no entries" in line
    assert os.access(key, os.R_OK)


def test_an_interpreter_without_jitgen_is_named(tmp_path: Path) -> None:
    """What another program said on standard error was all that there was to read."""
    (found,) = check._toolchains(
        settings(tmp_path, toolchains=(Toolchain(python=Path("/bin/ls")),))
    )

    assert found.startswith("toolchains default: /bin/ls is no Python with jitgen that works: ")


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    text = tmp_path / "tls.pem"
    text.write_text("none\n")
    listen = Listen(port=0, certificate=text, certificate_key=text)
    (found,) = check._certificate(settings(tmp_path, listen=listen))

    assert "certificate and certificate_key are no certificate and its key, PEM" in found
