# SPDX-License-Identifier: Apache-2.0
"""
The time from a pod's start to its first right result, for each source of the kernel.

Every figure is that of a fresh process. The process's own root contains the kernel only on the side
of the local hit. The sides take turns within a round, so that other work of the machine affects all
of them. Importing torch takes far longer than a fetch, and its time varies by more than a fetch
takes. So the additional time of a source, compared with a local hit, is counted from the end of
that import, round by round.
"""

from __future__ import annotations

import functools
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from socketserver import BaseServer
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self, TypedDict

from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.processes import PROBLEM
from jitgen.bench.protocol import Row, python, python_environment, row_of
from jitgen.support.frozen import frozen
from jitgen.support.variables import TABLE

if TYPE_CHECKING:
    from jitgen.signing.keys import PrivateKey


BUDGET_MS = 60.0
"""The most that a fetch may take in addition to a local hit: far less than a compile."""

ROUNDS = 7
LOCAL = "a local hit"
_COMPILES = {"JITGEN_ON_MISS": "compile"}

_SCRIPT = (
    PROBLEM
    + """\
gc.collect()

start, cpu = time.perf_counter(), time.process_time()
import jitgen

tiers = []
jitgen.on_event(lambda event: tiers.append(event.tier) if event.kind == "load" else None)
out = jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
end, cpu_end = time.perf_counter(), time.process_time()

rows = [a[g * 16 : g * 16 + 16].float() @ b[g].float().T for g in range(groups)]
print(json.dumps({
    "seconds": end - float(sys.argv[1]),
    "call_s": end - start,
    "cpu_s": cpu_end - cpu,
    "is_right": bool((out == torch.cat(rows).to(torch.bfloat16)).all()),
    "tiers": tiers,
}))
"""
)


@frozen
class Side:
    """
    A source from which a pod gets its kernel.

    Attributes:
        what: Name of the source in tables.
        tier: The tier that the event must name, so that no other source is measured by mistake.
        environment: The environment variables that name the source.
        has_budget: Whether `BUDGET_MS` applies to the source.
    """

    what: str
    tier: str
    environment: Mapping[str, str]
    has_budget: bool = False


@frozen
class Start:
    """
    How one pod started.

    Attributes:
        seconds: Seconds from the process's start to the first right result.
        call_s: Seconds from the end of ``import torch`` to the first right result.
        cpu_s: CPU seconds of all threads in the same time.
    """

    seconds: float
    call_s: float
    cpu_s: float


def rows() -> Iterator[Row]:
    """
    Yield the time to the first result for each side, and the difference from the time of a local
    hit.
    """
    with TemporaryDirectory(prefix="jitgen-bench-") as name, Places(Path(name)) as places:
        found, missing = sides(places)
        for place, side in enumerate(found):
            fill = replace(side, environment={**side.environment, **_COMPILES})
            started(fill, Path(name, f"first-{place}"))  # the service compiles it, too
        rounds = [
            {side.what: started(side, Path(name, f"{number}-{place}")) for place, side in turn}
            for number, turn in enumerate(_turns(found, ROUNDS))
        ]
    yield from table(found, rounds, missing)


def sides(places: Places) -> tuple[list[Side], list[str]]:
    """Return the sides that can be measured on this machine, and for each other side the reason."""
    compiled = Side(what="a compile here", tier="compiled", environment=_COMPILES)
    started(compiled, places.root)
    filled = str(places.root)
    found = [
        Side(what=LOCAL, tier="disk", environment={"JITGEN_CACHE_DIR": filled}),
        Side(what="a base layer", tier="base", environment={"JITGEN_BASE": filled}),
    ]
    missing = []
    for what, tier, place in (
        ("a remote, a folder", "remote", places.folder),
        ("a remote over HTTP", "remote", places.website),
        ("the service", "service", places.service),
    ):
        try:
            found.append(Side(what=what, tier=tier, environment=place(), has_budget=True))
        except Missing as error:
            missing.append(f"{what} ({error})")
    return [*found, compiled], missing


def started(side: Side, root: Path) -> Start:
    """
    Start a pod and return its times; `root` is its cache root, unless the side's environment sets
    one.

    Raises:
        WrongResult: Its result is wrong, or its kernel came from somewhere else.
    """
    environment = {"JITGEN_CACHE_DIR": str(root), **side.environment}
    found = json.loads(python(_SCRIPT, _now(), environment=_environment(environment)))
    return checked(side, found)


class _Found(TypedDict):
    """The JSON object that a pod prints."""

    is_right: bool
    tiers: list[str]
    seconds: float
    call_s: float
    cpu_s: float


def checked(side: Side, found: _Found) -> Start:
    """
    Check the result and the tier that a pod printed, and return its start; raises as `started`.
    """
    if not found["is_right"]:
        raise WrongResult(f"a pod whose kernel comes from {side.what} computed a wrong result")
    if set(found["tiers"]) != {side.tier}:
        tiers = ", ".join(found["tiers"]) or "nowhere"
        raise WrongResult(f"a kernel that was to come from {side.what} came from {tiers}")
    return Start(seconds=found["seconds"], call_s=found["call_s"], cpu_s=found["cpu_s"])


def table(
    found: Sequence[Side], rounds: Sequence[Mapping[str, Start]], missing: Iterable[str] = ()
) -> Iterator[Row]:
    """Yield the rows of the results; each round has one start of each side."""
    notes = "".join(f"; not measured: {note}" for note in missing)
    for side in found:
        times = Times(seconds=tuple(each[side.what].seconds for each in rounds))
        what = f"process start to the first right result, from {side.what}"
        yield row_of("pod", what, times, "s", more=notes if side.what == LOCAL else "")
    for side in found:
        if side.what == LOCAL:
            continue
        beyond = [(each[side.what], each[LOCAL]) for each in rounds]
        times = Times(seconds=tuple(mine.call_s - local.call_s for mine, local in beyond))
        cpu_s = statistics.median(mine.cpu_s - local.cpu_s for mine, local in beyond)
        budget = BUDGET_MS if side.has_budget else None
        more = f"; {cpu_s * 1e3:.3g} ms of CPU"
        yield row_of("pod", f"{side.what}, beyond a local hit", times, "ms", budget, more)


def _turns(found: Sequence[Side], rounds: int) -> Iterator[list[tuple[int, Side]]]:
    """
    Yield the sides with their numbers once per round; each round begins with a different side.
    """
    numbered = list(enumerate(found))
    for number in range(rounds):
        first = number % len(numbered)
        yield numbered[first:] + numbered[:first]


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    """
    Return the environment of a pod, without settings of this process; in the pod a miss is an
    error, unless `changes` say otherwise.
    """
    unset = {setting.variable: "" for setting in TABLE}
    return {**unset, "JITGEN_ARCH": "cpu", "JITGEN_ON_MISS": "error", **changes}


def _now() -> str:
    """Return the present moment, by the clock that all processes of a host share."""
    return repr(time.perf_counter())


_START_S = 60.0
_STOP_S = 30.0
_POLL_S = 0.05
_REMOTE = ("cryptography", "obstore", "zstandard")
_SERVER = (*_REMOTE, "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop")


class Missing(Exception):
    """A package that is needed to serve kernels is not installed; the message says what to run."""


class Places:
    """
    The sources from which a pod of the benchmark fetches kernels: a folder, a web server, or a
    compile service. Each is set up when its method is called.

    Attributes:
        root: Root of a filled cache, whose kernels the folder and the web server contain.
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
        """Return the settings of a pod that fetches from a service; raises as `folder`."""
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
        """The folder of a remote cache with every kernel of `root`, each signed."""
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
    """Serves files over kept connections, as a web server does, without logging."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each body waits 40 ms for the header's acknowledgement

    def __init__(
        self, folder: Path, request: socket.socket, address: tuple[str, int], server: BaseServer
    ) -> None:
        super().__init__(request, address, server, directory=str(folder))

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
    """Return the port in a service's log; 0 if it is not there yet."""
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
    """End a process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
