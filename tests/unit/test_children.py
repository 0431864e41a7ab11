# SPDX-License-Identifier: Apache-2.0
"""
How jitgen starts Python: from anywhere, and with the standard library that is the real one.

A ``json.py`` in the working folder used to run in every process that compiles, and a working folder
that was removed used to end them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jitgen.compile import children
from jitgen.compile.children import FOLDER, environment, python

HOSTILE = "open({mark!r}, 'a').write(__name__)\nraise SystemExit(1)\n"
TINY = """
import json, os, struct, subprocess, sys
def main(*arguments):
    print(json.dumps({
        "arguments": arguments,
        "folder": os.getcwd(),
        "path": sys.path,
        "json": json.__file__,
        "jitgen": __import__("jitgen").__file__,
        "main": sorted(vars(sys.modules["__main__"])),
    }))
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this process's import path with a module to start."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "tiny_child.py").write_text(TINY, encoding="ascii")
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose modules leave a mark where they are imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    text = HOSTILE.format(mark=str(tmp_path / "mark"))
    for name in ("json", "struct", "subprocess", "tiny_child", "sitecustomize", "encodings"):
        (folder / f"{name}.py").write_text(text, encoding="ascii")
    monkeypatch.chdir(folder)
    return folder


def start(*arguments: str) -> dict[str, Any]:
    """Start the module and return what it says."""
    done = subprocess.run(
        python("tiny_child", *arguments),
        cwd=FOLDER,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["json"] == json.__file__
    return found


def test_arguments_arrive_as_they_are() -> None:
    """They used to be quoted for a shell that there is none of."""
    arguments = ["", "-c", "a b", "'\"\n", "{module}", "é日", "--"]

    assert start(*arguments)["arguments"] == arguments


def test_where_it_starts() -> None:
    """A child in the caller's working folder holds up its unmounting."""
    assert start()["folder"] == FOLDER


def test_it_knows_nothing_of_the_callers_main() -> None:
    """A script without a guard used to be run once more in each child."""
    assert not {"pytest", "console_main"} & set(start()["main"])


@pytest.mark.parametrize(
    "path", [None, "", ".", ":", ":.:", "hostile", "..:.", "./", "relative:/nowhere", "~", "$PWD"]
)
def test_a_hostile_working_folder(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    """An empty or relative part of PYTHONPATH means the working folder, and so does one of ours."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(sys, "path", ["", ".", "..", "hostile", *sys.path, ""])
    found = start()

    assert not (tmp_path / "mark").exists()
    assert all(Path(part).is_absolute() for part in found["path"])
    assert str(hostile) not in found["path"]


def test_started_in_the_hostile_folder_itself(hostile: Path, tmp_path: Path) -> None:
    """Safe-path mode alone has to do where it is started elsewhere."""
    done = subprocess.run(
        python("tiny_child"), env=environment(), capture_output=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "mark").exists()


def test_the_working_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """os.getcwd() raises there, in this process and in every child that inherits it."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    assert start()["folder"] == FOLDER


def test_the_import_path_is_this_processes(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was added to sys.path while running is found, in the same order; odd parts as text."""
    monkeypatch.setattr(sys, "path", [*sys.path, "/odd 'path'\n", modules / "a path"])
    here = [str(part) for part in sys.path if Path(part).is_absolute()]
    found = start()["path"]

    assert found[: len(here)] == here
    assert here[-2:] == ["/odd 'path'\n", str(modules / "a path")]


def test_jitgen_from_a_working_folder_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A checkout that is the working folder is found, behind the standard library, which used to be
    shadowed by whatever lies in it.
    """
    home = str(Path(children.__file__).resolve().parents[2])
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part not in (home, "")])
    found = start()

    assert found["path"][-1] == home


class TestEnvironment:
    def test_absolute_parts_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", ":/one:two:/three four:.:")

        assert environment()["PYTHONPATH"] == "/one:/three four"

    @pytest.mark.parametrize("path", ["", ".", "a:b", ":::"])
    def test_an_empty_rest_is_left_out(self, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
        """An empty PYTHONPATH once meant the working folder, too."""
        monkeypatch.setenv("PYTHONPATH", path)

        assert "PYTHONPATH" not in environment()

    def test_this_process_keeps_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", ".")
        monkeypatch.setenv("SOMETHING", "else")
        found = environment()

        assert found["SOMETHING"] == "else"
        assert os.environ["PYTHONPATH"] == "."
