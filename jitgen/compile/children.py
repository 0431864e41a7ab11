# SPDX-License-Identifier: Apache-2.0
"""
Starts Python processes with this process's import path, but never with the working folder on it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from jitgen.settings import settings

FOLDER = "/"
"""
Working folder of the processes: the caller's may no longer exist, and a process in it would keep it
from being unmounted.
"""

_START = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main(*sys.argv[2:])
"""


def python(module: str, *arguments: str) -> list[str]:
    """
    Return the command that calls ``main(*arguments)`` of `module` in a new interpreter.

    Safe-path mode keeps the working folder, which may contain a ``json.py``, off ``sys.path``.
    Start the command with `environment`, in `FOLDER`. Nothing is imported from the caller's
    ``__main__``, so this works from a script without a guard and from a REPL.
    """
    return [sys.executable, "-P", "-c", _START.format(module=module), _import_path(), *arguments]


def environment() -> dict[str, str]:
    """
    Return the environment for a new interpreter: that of this process, with JITGEN_PLUGINS set to
    the plug-ins that this process uses. Empty and relative parts of ``PYTHONPATH`` and a relative
    ``TMPDIR`` are removed: with them, the interpreter would import from the working folder, or
    write there.
    """
    changed = dict(os.environ)
    path = changed.pop("PYTHONPATH", "").split(os.pathsep)
    if kept := os.pathsep.join(part for part in path if Path(part).is_absolute()):
        changed["PYTHONPATH"] = kept
    if not Path(changed.get("TMPDIR", "/")).is_absolute():
        del changed["TMPDIR"]
    changed.pop("JITGEN_PLUGINS", None)
    if settings.plugins:
        changed["JITGEN_PLUGINS"] = ",".join(settings.plugins)
    return changed


def _import_path() -> str:
    """
    Return this process's import path as JSON, without entries that mean the working folder.

    If the program found jitgen in its working folder, that folder is the last entry.
    """
    home = str(Path(__file__).resolve().parents[2])
    path = [str(folder) for folder in sys.path if Path(str(folder)).is_absolute()]
    return json.dumps(path if home in path else [*path, home])
