# SPDX-License-Identifier: Apache-2.0
"""Run the command line in this process, or in a fresh one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from jitgen.cli import main


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        document = json.loads(self.out)
        assert document["schema"] == 1
        return dict(document)


Jitgen = Callable[..., Done]


@pytest.fixture
def jitgen(capsys: pytest.CaptureFixture[str]) -> Jitgen:
    """Run a command line, given in one string or several, in this process."""

    def call(*words: str) -> Done:
        capsys.readouterr()
        code = main.run(" ".join(words).split())
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


def process(*words: str, script: str = "") -> Done:
    """Run a command line, or a script, in a process of its own."""
    command = ["-c", script] if script else ["-m", "jitgen.cli.main", *words]
    path = os.pathsep.join(folder for folder in sys.path if folder)
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Done(done.returncode, done.stdout, done.stderr)
