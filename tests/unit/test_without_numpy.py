# SPDX-License-Identifier: Apache-2.0
"""torch warns of a missing NumPy when it is imported: not through jitgen, which needs none."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys

class NoNumPy:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "numpy":
            raise ModuleNotFoundError("No module named 'numpy'")

sys.meta_path.insert(0, NoNumPy())
{first}
import jitgen
jitgen.grouped_gemm
assert "torch" in sys.modules
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("first", "warns"), [("", False), ("import torch", True)])
def test_a_program_that_imports_torch_itself_is_told(first: str, warns: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    assert ("Failed to initialize NumPy" in done.stderr) is warns
