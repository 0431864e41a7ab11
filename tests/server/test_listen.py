# SPDX-License-Identifier: Apache-2.0
"""A service or signer that cannot listen where it is told to says so, and what to do."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import Any

import pytest

from jitgen.errors import JitgenError, ResourceError, SettingError
from jitgen.server import signer
from jitgen.server.check import config_errors
from jitgen.server.log import Log
from jitgen.server.serve import run
from jitgen.server.settings import parse_settings
from jitgen.signing.keys import PrivateKey


def start(folder: Path, listen: dict[str, Any], kind: type[JitgenError] = ResourceError) -> str:
    """Return why a service that is to listen there does not start."""
    document = {
        "listen": listen,
        "store": {"root": str(folder / "cache")},
        "access": {"anonymous": ["read"]},
    }
    settings, found = parse_settings(document)
    assert not found
    with pytest.raises(kind) as error:
        run(settings)
    return str(error.value)


def test_a_port_in_use_is_one_clear_error(tmp_path: Path) -> None:
    """Left to uvicorn, it ends with exit code 3, and nothing on the terminal."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = start(tmp_path, {"port": port})

    assert said.startswith(f"cannot listen at 127.0.0.1:{port}: something listens there already")
    assert "listen.port" in said


def test_so_is_an_address_of_another_machine(tmp_path: Path) -> None:
    said = start(tmp_path, {"host": "192.0.2.1", "port": 0})  # RFC 5737: unused

    assert said.startswith("cannot listen at 192.0.2.1:0: ")
    assert "see listen.host" in said


def test_a_certificate_that_is_none_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    listen = {"port": 0, "certificate": str(tmp_path / "junk.pem")}
    said = start(tmp_path, listen | {"certificate_key": listen["certificate"]}, SettingError)

    assert said.startswith("listen: the certificate, its key or client_ca cannot be used: ")


def test_a_root_that_cannot_be_made_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = tmp_path / "service.toml"
    config.write_text(f'[store]\nroot = "{tmp_path}/file/cache"\n[access]\nanonymous = ["read"]\n')

    assert f"{tmp_path}/file is no folder" in "\n".join(config_errors(config))


def test_a_signer_without_a_folder_for_its_socket_says_so(tmp_path: Path) -> None:
    path = tmp_path / "none" / "signer.sock"

    with pytest.raises(ResourceError, match=f"no socket can be made at {path}: No such file"):
        signer.listen(path, PrivateKey.generate(), Log(io.StringIO()))
