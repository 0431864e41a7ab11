# SPDX-License-Identifier: Apache-2.0
"""What docs/kernel-engineer.md shows is what happens: a newcomer types it in, and it works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jitgen.cli.main import _COMMANDS
from tests import needs

pytestmark = [needs.compiler, needs.linker]

PAGE = (Path(__file__).parents[2] / "docs" / "kernel-engineer.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ON_CPU, ON_HOPPER = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def typed(console: str, folder: Path, cache: Path) -> str:
    """Type a block of the page into a shell in `folder`, and return what came out."""
    for name, script in zip(("call.py", "serve.py", "emulate.py"), SCRIPTS, strict=True):
        (folder / name).write_text(script, encoding="utf-8")
    tools = folder / "bin"
    tools.mkdir()
    for name, words in (("jitgen", "-m jitgen"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        (tools / name).chmod(0o755)
    lines = [line.removeprefix("$ ") for line in console.splitlines()]
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -e", *lines])],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "JITGEN_CACHE_DIR": str(cache),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def state(step: str, out: str) -> str:
    found = re.search(rf"^{step} +(\w+)", out, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.nightly
def test_five_commands_on_cpu(tmp_path: Path, kernel_root: Path) -> None:
    """Show, edit, run, call, and call without naming it."""
    out = typed(ON_CPU, tmp_path, kernel_root)

    assert len(ON_CPU.splitlines()) == 1 + 5
    assert [state(step, out) for step in ("compile", "check", "time")] == ["ok", "right", "ok"]
    assert "SMs" not in out  # sizes of the emulator have some
    assert out.endswith("True\nTrue\nTrue\n")


@pytest.mark.nightly
def test_the_same_on_hopper(tmp_path: Path, kernel_root: Path) -> None:
    """The emulator proves it, and runs a call."""
    out = typed(ON_HOPPER, tmp_path, kernel_root)

    assert [state(step, out) for step in ("compile", "emulate", "check")] == [
        *("ok", "right", "skipped"),
    ]
    counted = re.search(r"executed .* instructions that matter", out)
    assert counted is not None
    assert counted[0] in PAGE
    assert re.search(r"^source +differs +\+1 -1 lines", out, re.MULTILINE)
    assert re.search(r"^mbarriers +28 +16$", out, re.MULTILINE)
    assert out.endswith("True\n1\n")


def test_every_command_and_option_is_there() -> None:
    """What the page spells in code is what the commands take."""
    from click.testing import CliRunner

    from jitgen.cli.main import cli

    lines = re.findall(
        r"^ *(?:\$ )?(?:\w+=\S+ )?jitgen ([a-z]+(?: kernel)?) (.*)$", PAGE, re.MULTILINE
    )
    assert {command for command, _ in lines} == {"run", "show", "diff", "bench kernel", "tune"}
    for command, rest in lines:
        assert command.split()[0] in _COMMANDS
        help_text = CliRunner().invoke(cli, [*command.split(), "--help"]).output
        for option in re.findall(r"--[a-z-]+", rest.partition("#")[0]):
            assert option in help_text, f"jitgen {command} {option}"
