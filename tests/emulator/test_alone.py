# SPDX-License-Identifier: Apache-2.0
"""The emulator knows nothing of jitgen but its errors: it could be released on its own."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jitgen import emulator
from tests.emulator.host import KERNEL, build
from tests.emulator.test_api import DOUBLE, PTX

ROOT = Path(emulator.__file__).parent
OURS = ("jitgen.emulator", "jitgen.errors")
SINGLE = {"torch": {"host/tensors.py"}, "tvm_ffi": {"host/native.py"}}
"""Libraries that one file knows."""

CALL = """\
import sys
from pathlib import Path
import torch
from jitgen.emulator import Artifact, emulate

library, ptx = (Path(name) for name in sys.argv[1:])
out = torch.full((100,), -1, dtype=torch.int32)
artifact = Artifact(library=library.read_bytes(), symbol="double", ptx=ptx.read_text())
report = emulate(artifact, out, out.data_ptr(), 100, num_sms=4)
assert report.is_clean, str(report)
assert out.tolist() == list(range(0, 200, 2))
print(*sorted(name for name in sys.modules if name.startswith("jitgen.")))
"""


def imports(path: Path) -> set[str]:
    """Return the full names that a file imports, at any depth of it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports a neighbour by a relative name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_it_imports_nothing_of_jitgen_but_its_errors() -> None:
    """Beside that the standard library and numpy, and two libraries in one file each."""
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for other in imports(path):
            top = other.partition(".")[0]
            is_ours = other.startswith(tuple(f"{each}." for each in OURS)) or other in OURS
            is_known = top in sys.stdlib_module_names or top == "numpy"
            if not (is_ours or is_known or name in SINGLE.get(top, ())):
                wrong.append(f"{name} imports {other}")

    assert not wrong


def test_its_tests_could_go_with_it() -> None:
    wrong = [
        f"{path.name} imports {other}"
        for path in sorted(Path(__file__).parent.glob("*.py"))
        for other in imports(path)
        if other.partition(".")[0] in ("jitgen", "tests")
        and not other.startswith((*OURS, "tests.emulator"))
    ]

    assert not wrong


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_it_runs_without_the_rest(tmp_path: Path) -> None:
    """A copy, with an empty package around it, runs a kernel; nothing else of jitgen is there."""
    package = tmp_path / "jitgen"
    shutil.copytree(ROOT, package / "emulator", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT.parent / "errors.py", package)
    (package / "__init__.py").write_text("")
    (tmp_path / "library").write_bytes(build(tmp_path))
    (tmp_path / "ptx").write_text(PTX.format(kernel=KERNEL, body=DOUBLE))

    done = subprocess.run(
        [sys.executable, "-c", CALL, "library", "ptx"],
        cwd=tmp_path,
        env={"PATH": str(Path(shutil.which("gcc") or "").parent), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert all(name.startswith(OURS) for name in done.stdout.split())
    assert "jitgen.emulator.api" in done.stdout
