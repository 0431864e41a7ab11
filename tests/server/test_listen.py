# SPDX-License-Identifier: Apache-2.0
"""A service or signer that cannot listen where it is told to says so, and what to do."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import Any

import pytest

from jitgen.errors import ResourceError
from jitgen.server import signer
from jitgen.server.log import Log
from jitgen.server.serve import run
from jitgen.server.settings import parse_settings
from jitgen.signing.keys import PrivateKey


def start(folder: Path, listen: dict[str, Any]) -> str:
    """Return why a service that is to listen there does not start."""
    document = {
        "listen": listen,
        "store": {"root": str(folder / "cache")},
        "access": {"anonymous": ["read"]},
    }
    settings, mistakes = parse_settings(document)
    assert not mistakes
    with pytest.raises(ResourceError) as error:
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
    said = start(tmp_path, {"host": "192.0.2.1", "port": 0})  # RFC 5737: nobody's

    assert said.startswith("cannot listen at 192.0.2.1:0: ")
    assert "see listen.host" in said


def test_a_signer_without_a_folder_for_its_socket_says_so(tmp_path: Path) -> None:
    path = tmp_path / "none" / "signer.sock"

    with pytest.raises(ResourceError, match=f"no socket can be made at {path}: No such file"):
        signer.listen(path, PrivateKey.generate(), Log(io.StringIO()))
