# SPDX-License-Identifier: Apache-2.0
"""
Failing file calls, exhaustively: every call below the root fails, once and from then on for good.

A library that stands between the process and the C library (``shim.c``) makes the n-th call fail.
Each operation is first counted and then repeated with each of its calls failing, with each error.
Every caller must get its kernel; a command may say in one line what it cannot do. Afterwards
the cache must serve as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.kernels import (
    ARCH,
    CONFIGS,
    IMPORTS,
    answer_of,
    fill,
    in_child,
    loader,
    name_of,
    pretending,
    result_of,
    warm_up,
)
from tests.chaos.report import Stage

ERRNOS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.ESTALE, errno.EROFS)
SHIM = Path(__file__).with_name("shim.c")
_QUICK = 2  # trials of one operation in the quick stage, spread over its calls

Work = Callable[[Path], str]


def run(quick: bool = True, *, errors: int = len(ERRNOS)) -> Stage:
    """
    Run all trials in processes that have the shim, one for each core; add up what they found.

    Args:
        quick: Take a few of an operation's calls.
        errors: With how many of the six errors a call fails. Of fewer than six, the next call takes
            the next ones.
    """
    stage = Stage("calls", "0 raw errors, 0 wrong, 0 lasting harm")
    with tempfile.TemporaryDirectory() as folder:
        shim = Path(folder, "shim.so")
        options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wno-nonnull-compare"]
        subprocess.run(["gcc", *options, "-o", str(shim), str(SHIM), "-ldl"], check=True)
        shares = 1 if quick else os.cpu_count() or 1  # a start takes as long as a sample
        command = [
            sys.executable,
            "-P",
            "-m",
            "tests.chaos.calls",
            str(shim),
            str(int(quick)),
            str(errors),
        ]
        parts = [
            subprocess.Popen(
                [*command, str(share), str(shares)],
                env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": IMPORTS},
                stdout=subprocess.PIPE,
                text=True,
            )
            for share in range(shares)
        ]
        documents = [json.loads(part.communicate()[0]) for part in parts]
    for operation in OPERATIONS:
        found = [document[operation.name] for document in documents]
        calls = found[0]["calls"]
        trials, failing = (sum(part[what] for part in found) for what in ("trials", "failing"))
        bad = [text for part in found for text in part["failures"]]
        stage.counts.update({"calls": calls, "trials": trials, "failing calls": failing})
        stage.lines.append(f"{operation.name}: {calls} calls, {trials} trials, {len(bad)} failures")
        for text in bad:
            stage.fail(f"{operation.name}: {text}")
    return stage.end()


@dataclass(frozen=True)
class Operation:
    """
    Something that programs and people do with a cache.

    Attributes:
        name: Name of the operation.
        prepare: Makes the cache that it begins with.
        work: Does it; returns a complaint, or nothing.
    """

    name: str
    prepare: Callable[[Path], object]
    work: Work


def _get(root: Path) -> str:
    with pretending():
        got = result_of(loader(root).get(CONFIGS[0], ARCH))
    return "" if got == answer_of(CONFIGS[0]) else f"wrong: {got}"


def _get_twice(root: Path) -> str:
    """
    Get two kernels one after the other, as a process that goes on: at the second the trouble may be
    over, or not.
    """
    with pretending():
        subject = loader(root)
        for config in (CONFIGS[0], CONFIGS[1]):
            if result_of(subject.get(config, ARCH)) != answer_of(config):
                return "wrong"
        subject.store.index.close()
    return ""


def _failures(root: Path) -> str:
    subject = loader(root)
    index = subject.store.index
    index.remember_failure("ab" * 32, "name", "reason", 60)
    index.failure("ab" * 32)  # it may be forgotten: then the kernel is tried once more
    index.failures()
    index.forget_failure("ab" * 32)
    index.close()
    return ""


def command(*words: str) -> Work:
    """Return the work of a command: it may fail, with one line of jitgen's own."""

    def work(root: Path) -> str:
        from jitgen.cli.main import run as run_command

        os.environ["JITGEN_CACHE_DIR"] = str(root)
        os.environ["JITGEN_ARCH"] = "cpu"
        said = io.StringIO()
        told = [word.replace("KEY", _key(root)) for word in words]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = run_command(told)
        text = said.getvalue()
        if code not in (0, 1, 2, 3) or "Traceback" in text or "InternalError" in text:
            return f"exit code {code}: {text}"
        return ""

    return work


def _key(root: Path) -> str:
    """Return the key of the first kernel: no file call, for it is computed."""
    from jitgen.runtime.spec import key

    return key(CONFIGS[0], ARCH)


def _damaged(root: Path) -> None:
    fill(root, 2)
    path = next((root / "v1" / "entries").glob(f"*/{_key(root)}/kernel.so"))
    path.unlink()
    path.write_bytes(b"damaged")


def _blocked(root: Path) -> None:
    fill(root, 2)
    shard = root / "v1" / "entries" / _key(root)[:2]
    shutil.rmtree(shard)
    shard.write_bytes(b"")


def _two(root: Path) -> None:
    fill(root, 2)


def _used(root: Path) -> None:
    """Make a root with two kernels, an index, a remembered failure, and a recorded use."""
    store = fill(root, 2)

    def use() -> None:
        store.index.remember_failure("cd" * 32, "name", "reason", 600)
        store.index.rows()
        store.index.record_use(_key(root))
        store.index.close()

    in_child(use)


def _nothing(_: Path) -> None:
    """Leave the place empty: there is no root."""


NAME = name_of(CONFIGS[0])
OPERATIONS = (
    Operation("cold get, no root", _nothing, _get),
    Operation("cold get", lambda root: fill(root, 0) or (root / "x").exists(), _get),
    Operation("warm get", _two, _get),
    Operation("two gets", _nothing, _get_twice),
    Operation("get of a damaged entry", _damaged, _get),
    Operation("get behind a file", _blocked, _get),
    Operation("failures", _two, _failures),
    Operation("cache dir", _used, command("cache", "dir")),
    Operation("cache ls", _used, command("cache", "ls")),
    Operation("cache ls --failures", _used, command("cache", "ls", "--failures", "--json")),
    Operation("cache stats", _used, command("cache", "stats", "--json")),
    Operation("cache explain", _used, command("cache", "explain", NAME)),
    Operation("cache verify", _damaged, command("cache", "verify")),
    Operation("cache verify --rebuild", _used, command("cache", "verify", "--rebuild")),
    Operation("cache prune", _used, command("cache", "prune", "--size", "1")),
    Operation("cache rm", _used, command("cache", "rm", NAME)),
    Operation("cache clear", _used, command("cache", "clear", "--yes")),
    Operation("cache pin", _used, command("cache", "pin", "KEY")),
    Operation("cache unpin", _used, command("cache", "unpin", "KEY")),
    Operation("cache adopt", _used, command("cache", "adopt")),
    Operation("show", _used, command("show", NAME)),
    Operation("show KEY --source", _used, command("show", "KEY", "--source")),
    Operation("prewarm --dry-run", _used, command("prewarm", "--config", NAME, "--dry-run")),
    Operation("select", _used, command("select", "-g", "2", "-m", "64", "-n", "64", "-k", "128")),
    Operation("doctor", _used, command("doctor")),
)


class Shim:
    """The library that is preloaded into this process."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.chaos_last.restype = ctypes.c_char_p
        self._library.chaos_calls.restype = ctypes.c_long

    def arm(self, root: Path, at: int, error: int, *, goes_on: bool) -> None:
        """
        Let call number `at` of the file calls below `root` fail with `error`, and all later ones if
        the failure `goes_on`.
        """
        self._library.chaos_arm(str(root).encode(), ctypes.c_long(at), error, int(goes_on))

    def disarm(self) -> tuple[int, str]:
        """
        Let no call fail any more; return the number of calls that were made, and which one failed.
        """
        calls = int(self._library.chaos_calls())
        self._library.chaos_disarm()
        return calls, self._library.chaos_last().decode()


def main(shim_path: str, quick: str, errors: str, share: str, shares: str) -> None:
    """Run one share of every operation's trials; print what came of it as JSON."""
    logging.getLogger("jitgen").addHandler(logging.NullHandler())
    shim = Shim(shim_path)
    warm_up()
    # What commands import is imported once, not by the child of each trial.
    import jitgen.cli.cache_edit
    import jitgen.cli.cache_explain
    import jitgen.cli.doctor
    import jitgen.cli.main
    import jitgen.cli.prewarm
    import jitgen.cli.select
    import jitgen.cli.show
    import jitgen.codegen.render
    import jitgen.plans.prewarm
    import jitgen.runtime.coverage
    import jitgen.runtime.settings_check  # noqa: F401

    document: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for operation in OPERATIONS:
            found = document[operation.name] = {"trials": 0, "failing": 0, "failures": []}
            template, root = Path(folder, "template"), Path(folder, "cache")
            shutil.rmtree(template, ignore_errors=True)
            operation.prepare(template)
            calls, text = _trial(shim, operation, template, root, -1, 0, goes_on=False)
            assert not text, f"{operation.name}, without any failing call: {text}"
            found["calls"] = calls
            steps = range(0, calls, max(1, calls // _QUICK) if int(quick) else 1)
            for at in steps[int(share) :: int(shares)]:
                for error in _in_turn(at, 1 if int(quick) else int(errors)):
                    for goes_on in (False, True) if not int(quick) else (at % 2 == 0,):
                        found["trials"] += 1
                        made, text = _trial(
                            shim, operation, template, root, at, error, goes_on=goes_on
                        )
                        found["failing"] += max(0, made - at) if goes_on else int(made > at)
                        if text:
                            how = f"{errno.errorcode[error]} at {at}{' and on' * goes_on}"
                            found["failures"].append(f"{how}: {text}")
    json.dump(document, sys.stdout)


def _in_turn(at: int, count: int) -> list[int]:
    """Return `count` errors for the call of number `at`, beginning with another one for each."""
    return [ERRNOS[(at * count + place) % len(ERRNOS)] for place in range(count)]


def _trial(
    shim: Shim,
    operation: Operation,
    template: Path,
    root: Path,
    at: int,
    error: int,
    *,
    goes_on: bool,
) -> tuple[int, str]:
    """Do `operation` once with a failing call; return the calls it made, and a complaint."""
    shutil.rmtree(root, ignore_errors=True)
    if template.exists():
        shutil.copytree(template, root, symlinks=True)
    said = root.with_name("said")

    def work() -> None:
        shim.arm(root, at, error, goes_on=goes_on)
        try:
            text = operation.work(root)
        except BaseException as problem:  # raw or not: nothing may come out here
            text = f"{type(problem).__name__}: {problem}"
        calls, last = shim.disarm()
        text = f"{last}: {text}" if text else ""
        said.write_text(json.dumps([calls, " ".join(text.split())]))

    said.unlink(missing_ok=True)
    trouble = in_child(work)
    if trouble:
        return 0, trouble
    calls, text = json.loads(said.read_text())
    return calls, text or in_child(lambda: _check(root))


def _check(root: Path) -> None:
    """Assert that the cache serves as if nothing had happened."""
    with pretending() as compiled:
        for config in CONFIGS[:2]:
            assert result_of(loader(root).get(config, ARCH)) == answer_of(config)
        before = len(compiled)
        subject = loader(root)
        for config in CONFIGS[:2]:
            kernel = subject.get(config, ARCH)
            assert kernel.tier == "disk", f"not healed: {kernel.entry.why_private}"
        assert len(compiled) == before
    store = subject.store
    assert all(result.is_good for result in store.verify())
    store.index.remember_failure("ef" * 32, "name", "reason", 60)
    assert loader(root).store.index.failure("ef" * 32), "the index does not work"
    assert store.stats().entries >= 2


if __name__ == "__main__":
    main(*sys.argv[1:])
