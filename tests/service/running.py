# SPDX-License-Identifier: Apache-2.0
"""A service as a process of its own, as ``jitgen serve`` runs it, and clients of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import urllib3

from jitgen.compile import toolchain
from jitgen.config import Arch, Config
from jitgen.runtime.spec import spec_of
from jitgen.server.tokens import new_token
from jitgen.signing.keys import PrivateKey

SCOPES = ("read", "compile", "write", "admin")


def toml(tables: dict[str, Any]) -> str:
    """Return tables of plain values as TOML; a list is an array of tables."""
    lines = []
    for name, table in tables.items():
        if not isinstance(table, (dict, list)):
            lines.insert(0, f"{name} = {json.dumps(table)}")
        for each in table if isinstance(table, list) else [table]:
            if isinstance(each, dict):
                lines.append(f"[[{name}]]" if isinstance(table, list) else f"[{name}]")
                lines += [f"{field} = {json.dumps(value)}" for field, value in each.items()]
    return "\n".join(lines) + "\n"


class Running:
    """
    One service below `folder`, with tokens of one scope each and one of all.

    Attributes:
        tokens: Texts of the tokens, by scope; ``all`` for all of them.
        url: Address at which it listens.
        scheme: ``https`` where it has a certificate.
        bundles: The folder of bundles, where there is one.
        patience_s: Seconds that a start or an end may take.
        process: The process of the service.
    """

    def __init__(self, folder: Path, settings: dict[str, Any] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.key = PrivateKey.generate()
        self.key.save(folder / "key.pem")
        made = {scope: new_token(scope, (scope,)) for scope in SCOPES}
        made["all"] = new_token("all", SCOPES)
        self.tokens = {name: secret for name, (secret, _) in made.items()}
        file = folder / "tokens.toml"
        file.write_text("\n".join(table for _, table in made.values()))
        file.chmod(0o600)
        tables: dict[str, Any] = {
            "listen": {"port": 0},
            "store": {"root": str(folder / "cache")},
            "access": {"tokens": str(file)},
            "signing": {"key": str(folder / "key.pem")},
            "limits": {"grace_s": 20},
            "toolchains": [{"name": "default", "jobs": 2}],
        }
        for name, table in (settings or {}).items():
            merged = isinstance(table, dict) and name in tables
            tables[name] = {**tables[name], **table} if merged else table
        self.config = folder / "service.toml"
        self.config.write_text(toml(tables))
        self.log = folder / "log.jsonl"
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.http = pool()
        self.scheme = "http"
        self.bundles = folder
        self.patience_s = 60.0

    def start(self, descriptors: int = 0, until: str = "/readyz") -> None:
        """
        Start the service, with `descriptors` file descriptors unless that is 0; wait until the path
        `until` answers well.
        """
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "jitgen", "serve", str(self.config)]
            if descriptors:
                command = ["/bin/sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={n: v for n, v in os.environ.items() if not n.startswith("JITGEN_")},
            )
        deadline = time.monotonic() + self.patience_s
        port = 0
        while time.monotonic() < deadline:
            for line in self.log.read_bytes()[begin:].splitlines():
                with suppress(ValueError):
                    port = json.loads(line).get("port", port)
            self.url = f"{self.scheme}://127.0.0.1:{port}"
            with suppress(urllib3.exceptions.HTTPError):
                if port and self.http.request("GET", self.url + until).status == 200:
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the service does not start: {self.log.read_text()[-2000:]}")

    def reload(self) -> None:
        """Have the service read its files again, and wait until it says that it has."""
        assert self.process is not None
        before = len([e for e in self.events() if e["event"] == "reloaded"])
        self.process.send_signal(signal.SIGHUP)
        for _ in range(1000):
            if len([e for e in self.events() if e["event"] == "reloaded"]) > before:
                return
            time.sleep(0.01)
        raise AssertionError("it does not say that it read its files again")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send signal `number` to the service and wait for its end; return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(self.patience_s)

    def events(self) -> list[dict[str, Any]]:
        """Return the lines of the service's log."""
        found = []
        for line in self.log.read_bytes().splitlines():
            with suppress(ValueError):  # one that is being written
                found.append(json.loads(line))
        return found

    def request(
        self, method: str, path: str, scope: str = "all", **options: Any
    ) -> urllib3.BaseHTTPResponse:
        """Send one request with the token of a scope; none for an empty one."""
        headers = {**({"Authorization": f"Bearer {self.tokens[scope]}"} if scope else {})}
        headers |= options.pop("headers", {})
        return self.http.request(method, self.url + path, headers=headers, **options)

    def compile(self, config: Config, wait_s: int = 100) -> urllib3.BaseHTTPResponse:
        """Ask for a kernel for the CPU."""
        return self.request(
            "POST", "/v1/compile", json=order(config), headers={"Prefer": f"wait={wait_s}"}
        )


def pool() -> urllib3.PoolManager:
    """Return connections for one process: a forked child must not use its parent's."""
    return urllib3.PoolManager(retries=False, timeout=300.0, maxsize=64)


def order(config: Config, arch: Arch = Arch.CPU) -> dict[str, Any]:
    """Return the body that asks for a kernel."""
    return {
        "config": config.to_json(),
        "arch": str(arch),
        "key": spec_of(config, arch).key,
        "toolchain": toolchain.versions(),
    }


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process, without its children, has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the bytes of memory that a process occupies."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
