# SPDX-License-Identifier: Apache-2.0
"""Modules that moved are still found by the names that other installations use."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from jitgen._version import __version__
from jitgen.compile import worker_server
from jitgen.support.moved import DROPPED_IN, MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_gives_the_module_itself_and_a_warning(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old]}; jitgen {DROPPED_IN}"):
        found = importlib.import_module(old)

    assert found is importlib.import_module(MOVED[old])


def test_a_task_of_an_older_version_is_run() -> None:
    sys.modules.pop("jitgen.runtime.task", None)
    with pytest.warns(DeprecationWarning, match="is now jitgen.plans.task"):
        task = worker_server.resolve("jitgen.runtime.task:build_task")

    assert task.__module__ == "jitgen.plans.task"


def test_the_list_goes_with_the_version_that_it_names() -> None:
    now, dropped = (tuple(map(int, text.split("."))) for text in (__version__, DROPPED_IN))

    assert now < dropped


def test_a_module_that_never_was_is_missing_as_ever() -> None:
    code = "import jitgen.no_such_module"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "ModuleNotFoundError: No module named 'jitgen.no_such_module'" in ran.stderr
