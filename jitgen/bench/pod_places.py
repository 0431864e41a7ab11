# SPDX-License-Identifier: Apache-2.0
"""
The places that pods of the suite fetch from: a folder, a web server over it, a compile service.

All are of this host and end with the suite; keys, trust and tokens are new for each run. What is
signed, pushed and compiled goes through the commands that an operator would use.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

from jitgen.autotune.measure.errors import WrongResult
from jitgen.bench.protocol import python_environment

if TYPE_CHECKING:
    from jitgen.signing.keys import PrivateKey

_START_S = 60.0
_STOP_S = 30.0
_POLL_S = 0.05
_REMOTE = ("cryptography", "obstore", "zstandard")
_SERVER = (*_REMOTE, "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop")


class Missing(Exception):
    """A package that a place needs is not installed; the message says what to run."""


class Places:
    """
    Places below a folder, each made when it is first asked for.

    Attributes:
        root: Root of a cache, whose kernels the folder and the web server give out.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "filled"
        self._base = folder / "places"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._base.mkdir(mode=0o700)
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def folder(self) -> dict[str, str]:
        """
        Return the settings of a pod that fetches from a folder.

        Raises:
            Missing: A package is not installed.
        """
        need(_REMOTE, "jitgen[remote,signing]")
        return {"JITGEN_REMOTE": self._pushed.as_uri(), "JITGEN_TRUST": str(self._trust)}

    def website(self) -> dict[str, str]:
        """Return the settings of a pod that fetches over HTTP; raises as `folder`."""
        need(_REMOTE, "jitgen[remote,signing]")
        server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, self._pushed))
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        return {"JITGEN_REMOTE": url, "JITGEN_TRUST": str(self._trust)}

    def service(self) -> dict[str, str]:
        """Return the settings of a pod that asks a service; raises as `folder`."""
        need(_SERVER, "jitgen[server]")
        from jitgen.server.tokens import new_token

        secret, table = new_token("pods", ("read", "compile"))
        token = _private(self._base / "token", secret)
        tables: dict[str, dict[str, str | int]] = {
            "listen": {"port": 0},
            "store": {"root": str(self._base / "service")},
            "access": {"tokens": str(_private(self._base / "tokens.toml", table))},
            "signing": {"key": str(self._key_file)},
        }
        config = self._base / "service.toml"
        config.write_text(toml(tables))
        return {
            "JITGEN_SERVICE": self._serve(config),
            "JITGEN_TOKEN_FILE": str(token),
            "JITGEN_TRUST": str(self._trust),
        }

    def _serve(self, config: Path) -> str:
        """Start a service; returns its address once it is ready."""
        log = self._base / "log.jsonl"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "jitgen", "serve", str(config)],
                stdin=subprocess.DEVNULL,
                stderr=stream,
                env=python_environment({}),
            )
        self._stack.callback(_end, process)
        until = time.monotonic() + _START_S
        while time.monotonic() < until and process.poll() is None:
            url = f"http://127.0.0.1:{port_of(log.read_bytes())}"
            with suppress(OSError), urllib.request.urlopen(f"{url}/readyz", timeout=1):  # noqa: S310
                return url
            time.sleep(_POLL_S)
        raise WrongResult(f"the service does not start: {log.read_text()[-500:]}")

    @functools.cached_property
    def _key_file(self) -> Path:
        path = self._base / "signing.pem"
        self._key.save(path)
        return path

    @functools.cached_property
    def _key(self) -> PrivateKey:
        from jitgen.signing.keys import PrivateKey

        return PrivateKey.generate()

    @functools.cached_property
    def _trust(self) -> Path:
        from jitgen.signing.edit import added, begun
        from jitgen.signing.keys import PrivateKey

        root = PrivateKey.generate()
        path = self._base / "trust.json"
        path.write_bytes(added(begun(root.public), self._key.public).sealed(root))
        return path

    @functools.cached_property
    def _pushed(self) -> Path:
        """The folder of a remote, with every kernel of `root`, signed."""
        trust, target = self._trust, self._base / "remote"  # no key signs before it is trusted
        command = [sys.executable, "-P", "-m", "jitgen", "cache", "push", "--json"]
        done = subprocess.run(
            [*command, "--to", target.as_uri(), "--key", str(self._key_file)],
            env=python_environment(
                {"JITGEN_CACHE_DIR": str(self.root), "JITGEN_TRUST": str(trust)}
            ),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise WrongResult(f"jitgen cache push failed: {done.stderr.strip()[-500:]}")
        return target


class _Quiet(SimpleHTTPRequestHandler):
    """Gives out files over kept connections, as a web server does, and says nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each body waits 40 ms for the header's acknowledgement

    def __init__(self, folder: Path, *arguments: object) -> None:
        super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

    def log_message(self, *arguments: object) -> None:
        """Write nothing."""


def need(packages: tuple[str, ...], extra: str, find: Callable[[str], object] = find_spec) -> None:
    """Raise `Missing` unless every one of `packages` is installed."""
    if lacking := [name for name in packages if find(name) is None]:
        raise Missing(f"without {', '.join(lacking)}; run: pip install '{extra}'")


def toml(tables: dict[str, dict[str, str | int]]) -> str:
    """Return tables of texts and numbers as TOML."""
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{field} = {json.dumps(value)}" for field, value in table.items()]
    return "\n".join(lines) + "\n"


def port_of(log: bytes) -> int:
    """Return the port that a service's log tells; 0 while there is none."""
    for line in log.splitlines():
        with suppress(ValueError):  # one that is being written
            if port := json.loads(line).get("port"):
                return int(port)
    return 0


def _private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force where it does not."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
