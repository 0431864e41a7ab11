# SPDX-License-Identifier: Apache-2.0
"""The unit of systemd, started: its commands, as its user, in the folders that it names."""

from __future__ import annotations

import configparser
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import containers
from tests.containers import Container, volume
from tests.service.operating import authority, certificate, kernel_from
from tests.service.test_examples import EXAMPLES, Image, complete, wheel

__all__ = ["complete", "wheel"]

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(bool(containers.why_not()), reason=containers.why_not()),
]

USER = 20003
SETTINGS = """
[listen]
certificate = "/etc/jitgen/tls.crt"
certificate_key = "/etc/jitgen/tls.key"
[store]
root = "/var/lib/jitgen/cache"
[access]
tokens = "/etc/jitgen/tokens.toml"
[signing]
key = "/etc/jitgen/signing.pem"
trust = "/etc/jitgen/trust.json"
"""


def _etc(folder: Path, files: dict[str, bytes]) -> Path:
    """Make /etc/jitgen as the head of the unit says: of root, and the signing key of the user."""
    folder.mkdir()
    os.chown(folder, 0, USER)
    folder.chmod(0o750)
    for name, content in files.items():
        path = folder / name
        path.write_bytes(content)
        path.chmod(0o400 if name == "signing.pem" else 0o640)
        os.chown(path, USER if name == "signing.pem" else 0, USER)
    return folder


def test_the_unit_starts_checks_reloads_and_ends(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """No systemd is asked: what it would mount and who it would be are those of a container."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.read(EXAMPLES / "service" / "jitgen.service")
    said = unit["Service"]
    image = Image.of_service(request)
    signing, trust, token = authority(tmp_path)
    given = {
        "service.toml": SETTINGS.encode(),
        "tokens.toml": token["table"].encode(),
        "signing.pem": signing.read_bytes(),
        "trust.json": trust.read_bytes(),
        **certificate(tmp_path),
    }
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(int(said["StateDirectoryMode"], 8))
    os.chown(state, USER, USER)
    mounts = {
        "/etc/jitgen": (_etc(tmp_path / "etc", given), False),
        f"/var/lib/{said['StateDirectory']}": (state, True),
        "/tmp": (volume(tmp_path / "tmp", group=0), True),
    }

    def container(name: str) -> Container:
        return Container(
            tmp_path / name,
            image.files,
            user=USER,
            groups=[],
            environment=image.environment,
            mounts=mounts,
        )

    def command(name: str) -> list[str]:
        program, *words = shlex.split(said[name])
        assert program == "/opt/jitgen/bin/jitgen"
        return ["jitgen", *words]

    checked = container("check").run(*command("ExecStartPre"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    log = tmp_path / "log.txt"
    process = container("service").start(*command("ExecStart"), log=log)
    try:
        _until_ready(process, log)
        assert kernel_from(process, tmp_path / "client", token["token"], trust) == "service"
        assert said["ExecReload"] == "/bin/kill -HUP $MAINPID"
        process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 30
        while '"reloaded"' not in log.read_text():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        _until_ready(process, log)
    finally:
        process.terminate()
        code = process.wait(int(said["TimeoutStopSec"]))
    assert code == 0, log.read_text()


def _until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 120
    while containers.ask(process, "https://127.0.0.1:8555/readyz")[0] != 200:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.3)
