# SPDX-License-Identifier: Apache-2.0
"""
Which files of jitgen one call enters: a reader who follows a call has to open these.

``python -m tests.detours`` prints them, for a call whose kernel is on disk (warm disk) and for one
whose kernel is nowhere (cold). Each call runs in a fresh process that has torch and nothing of
jitgen's, as a user's first call does. A file counts when a function of it is entered, in whatever
thread; what runs only because a module is imported does not count: class bodies, decorators,
constants. What happens in worker processes is not seen, so the cold call compiles in its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

GOALS = {"warm disk": 25, "cold": 35}
"""Most files of jitgen that the first call of a process should enter."""

HAVE = {"warm disk": 55, "cold": 83}
"""Most files of jitgen that the first call enters today: lower them with every detour that goes."""

_ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("jitgen", "cache", "templates")

_SCRIPT = """\
import json, sys, threading
import torch

groups, rows, n, k = 4, 16, 128, 256
a = torch.ones(groups * rows, k).to(torch.float8_e4m3fn)
b = torch.ones(groups, n, k).to(torch.float8_e4m3fn)
a_scale, b_scale = torch.ones(k // 128, groups * rows).T, torch.ones(groups, 1, k // 128)
offs = torch.arange(rows, groups * rows + 1, rows, dtype=torch.int32)

entered, root = set(), sys.argv[1]

def is_import(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False

def note(frame, event, _):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(root):
        return  # most calls are torch's and the compiler's
    if code.co_name != "<module>" and code.co_filename not in entered:
        if not is_import(frame):
            entered.add(code.co_filename)

threading.setprofile(note)
sys.setprofile(note)
import jitgen
out = jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=offs)
sys.setprofile(None)
threading.setprofile(None)
assert (out == k).all()
print(json.dumps(sorted(entered)))
"""


def entered(cache_dir: Path) -> list[str]:
    """Return the files that a fresh process enters for its first call, below the checkout."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("JITGEN_")},
        "JITGEN_CACHE_DIR": str(cache_dir),
        "JITGEN_ARCH": "cpu",
        "JITGEN_COMPILE": "process",
    }
    command = [sys.executable, "-c", _SCRIPT, str(_ROOT)]
    text = subprocess.run(
        command, env=environment, cwd=_ROOT, check=True, capture_output=True, text=True, timeout=300
    ).stdout
    files = {Path(name).resolve() for name in json.loads(text) if not name.startswith("<")}
    return sorted(
        str(path.relative_to(_ROOT))
        for path in files
        if any(path.is_relative_to(_ROOT / folder) for folder in _FOLDERS)
    )


def measured() -> dict[str, list[str]]:
    """Return the files of both calls, by the names of `GOALS`."""
    with tempfile.TemporaryDirectory() as folder:
        cold = entered(Path(folder) / "cache")
        return {"warm disk": entered(Path(folder) / "cache"), "cold": cold}


if __name__ == "__main__":
    for what, files in measured().items():
        print(f"{what}: {len(files)} files, the goal is {GOALS[what]}", *files, sep="\n    ")
