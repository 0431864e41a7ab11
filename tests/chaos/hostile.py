# SPDX-License-Identifier: Apache-2.0
"""
Hostile text: files of every kind that jitgen parses, made to exhaust, to confuse or to deceive.

Each is read by a command of its own, which must end within two seconds of computing and 100 MB, say
what is wrong in at most one line, print nothing that drives a terminal, and lose nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jitgen.runtime.spec import key
from tests.chaos.kernels import ARCH, CONFIGS, IMPORTS, fill, warm_up
from tests.chaos.report import Stage
from tests.chaos.texts import TEXTS, Text

_SECONDS, _MEGABYTES, _LINE = 2.0, 100, 1000
_HEAD = """
import atexit, os, sys, time
from pathlib import Path
sys.modules["torch"] = None  # half a gigabyte that has nothing to do with it

def tell():  # what wait4 says is the peak of the process that forked, too
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM"))
    Path(os.environ["USED"]).write_text(f"{time.process_time()} {peak.split()[1]}")

atexit.register(tell)
"""
_COMMAND = """
from jitgen.cli.main import main
main()
"""
_PYTHON = """
from jitgen.errors import JitgenError
try:
    {code}
except JitgenError as error:
    print("error:", error, file=sys.stderr)
"""


@dataclass(frozen=True)
class Outcome:
    """
    What a command did.

    Attributes:
        code: Its exit code.
        out: Standard output of the command.
        err: Standard error of the command.
        seconds: CPU seconds of the command with the start of Python, so that other work of the
            machine does not count.
        megabytes: The most memory that it held.
    """

    code: int
    out: str
    err: str
    seconds: float
    megabytes: float

    def complaint(self, text: Text) -> str:
        """
        Return what is wrong with the outcome of the command that met `text`; empty if nothing is.
        """
        said = self.out + self.err
        errors = [line for line in self.err.splitlines() if line.startswith(("error:", "warning:"))]
        if self.code not in (0, 1, 2) or "Traceback" in self.err or "InternalError" in self.err:
            return f"exit code {self.code}: {self.err[-300:]}"
        if self.seconds > _SECONDS or not 0 < self.megabytes <= _MEGABYTES:
            return f"{self.seconds:.2f} s, {self.megabytes:.0f} MB"
        if any(not line.isprintable() for line in said.splitlines()):
            return f"raw characters: {said!r}"[:300]
        if len(errors) > 1 or text.says not in said:
            return f"said {errors or said[:300]}"
        if max(map(len, errors), default=0) > _LINE:
            return f"a line of {max(map(len, errors))} characters"
        return ""


def run(quick: bool = True) -> Stage:
    """Meet every text, or for `quick` every sixth."""
    stage = Stage("hostile", f"one line each, under {_MEGABYTES} MB, under {_SECONDS:g} s")
    warm_up()
    most_s = most_mb = 0.0
    for text in TEXTS[:: 6 if quick else 1]:
        with tempfile.TemporaryDirectory() as folder:
            root, path = (
                Path(folder, "cache"),
                Path(folder, "hostile file").with_suffix(text.suffix),
            )
            fill(root, 2)
            text.write(root, path)
            outcome = _attempt(text, root, path)
            complaint = outcome.complaint(text)
            most_s, most_mb = max(most_s, outcome.seconds), max(most_mb, outcome.megabytes)
            figures = f"{outcome.seconds:.2f} s, {outcome.megabytes:.0f} MB"
            stage.case(text.name, complaint or figures, is_good=not complaint)
    stage.lines.append(f"at most {most_s:.2f} s and {most_mb:.0f} MB")
    return stage.end()


def _attempt(text: Text, root: Path, path: Path) -> Outcome:
    """Run the command that meets `text`, in a process of its own."""
    places = {"FILE": str(path), "KEY": key(CONFIGS[0], ARCH)}
    words = [places.get(word, word) for word in text.words]
    script = _COMMAND
    if words[0] == "python":
        script, words = _PYTHON.format(code=words[1].replace("FILE", str(path))), []
    used = root.parent / "used"
    environment = {
        **os.environ,
        "JITGEN_CACHE_DIR": str(root),
        "PYTHONPATH": IMPORTS,
        "USED": str(used),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _HEAD + script, *words],
            env=environment,
            capture_output=True,
            check=False,
            timeout=30,
        )
    except subprocess.TimeoutExpired:
        return Outcome(code=-1, out="", err="no end after 30 s", seconds=30.0, megabytes=0.0)
    seconds, kilobytes = map(float, used.read_text().split()) if used.exists() else (0.0, 0.0)
    return Outcome(
        code=done.returncode,
        out=done.stdout.decode("utf-8", "replace"),
        err=done.stderr.decode("utf-8", "replace"),
        seconds=seconds,
        megabytes=kilobytes / 1024,
    )
