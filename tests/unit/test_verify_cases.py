# SPDX-License-Identifier: Apache-2.0
"""Files with cases: what they may say, and the one clear error where they say something else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from jitgen.errors import ConfigError
from jitgen.verify.cases import STREAM, Case, load, parameters

X = torch.zeros(2, 3)
HEAD = "import torch\nfrom jitgen.verify import Case\nx = torch.zeros(2, 3)\n"


def file(folder: Path, text: str) -> Path:
    path = folder / "kernels.py"
    path.write_text(text)
    return path


def test_cases_are_returned_or_yielded(tmp_path: Path) -> None:
    """What lies beside the file can be imported, and nothing of it is left on the path."""
    (tmp_path / "beside_the_kernels.py").write_text("NAME = 'one'\n")
    text = f"{HEAD}from beside_the_kernels import NAME\n"
    (tmp_path / "beside_them.py").write_text("NAME = 'two'\n")
    lazy = "from beside_them import NAME\n    "
    before = list(sys.path)

    for body in (
        "return [Case(name=NAME, arguments={'x': x})]",
        f"{lazy}yield Case(arguments={{'x': x}})",
    ):
        (case,) = load(file(tmp_path, f"{text}def verify_cases():\n    {body}\n"))
        assert str(case) == "x float32 2 x 3"
    assert sys.path == before
    assert not [name for name in sys.modules if "kernels" in name.partition(".")[2:]]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "kernels.py defines no verify_cases()"),
        ("verify_cases = 1", "kernels.py defines no verify_cases()"),
        ("x = 1\n1 / 0", "kernels.py, line 2, raises ZeroDivisionError"),
        ("x = (", "line 1, raises SyntaxError"),
        ("raise SystemExit(3)", "line 1, raises SystemExit: 3"),
        ("def verify_cases():\n    return ()", "returns no cases"),
        ("def verify_cases():\n    return None", "returns None; it must return, or yield, cases"),
        (
            "def verify_cases():\n    raise ValueError('no\\nway')",
            "line 2, raises ValueError: no way",
        ),
        ("def verify_cases():\n    yield 3", "returns 3; each must be a jitgen.verify.Case"),
    ],
)
def test_what_is_no_file_of_cases(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file(tmp_path, text))

    assert any(words in str(caught.value) for words in complaint.split("|"))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ("arguments={'x': [1]}", "argument 'x' must be a torch tensor or a number, not [1]"),
        ("arguments={'x': x.to('meta')}", "must be in host memory, not on meta"),
        ("arguments={'x': x}, expected={'y': x}", "expected names 'y', which is no tensor"),
        ("arguments={'x': 1}, expected={'x': x}", "expected names 'x', which is no tensor"),
        ("arguments={'x': x}, expected={'x': x[0]}", "shape (2, 3), not float32 3"),
        ("arguments={'x': x}, unknown=['w']", "unknown names 'w'"),
        ("arguments={'x': x}, samples={'w': 1}", "samples names 'w'"),
    ],
)
def test_what_a_case_cannot_say(tmp_path: Path, fields: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file(tmp_path, f"{HEAD}def verify_cases():\n    yield Case(name='a', {fields})\n"))

    assert str(caught.value).startswith("kernels.py, a: ")
    assert complaint in str(caught.value)


def entry(x: Any, n: Any, k: "Constexpr", where: "CUstream", stream: Any, last: Any = 7) -> None:  # type: ignore[name-defined]  # noqa: F821, UP037
    """Stand for a function of a kernel."""


def test_parameters_are_told_apart_by_name() -> None:
    given = Case(entry=entry, arguments={"n": 5, "x": X}, constants={"k": 8}, samples={"x": "any"})

    found = parameters(given)

    wanted = {"x": "any", "n": 5, "k": 8, "where": STREAM, "stream": STREAM, "last": 7}
    assert found.compiled == wanted
    assert found.called == ("x", "n")


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        (Case(entry=entry, arguments={"x": X}, constants={"k": 1}), "has a parameter 'n', which"),
        (Case(entry=entry, arguments={"z": X}), "entry() has no parameter 'z': x, n, k"),
        (Case(entry=entry, arguments={"x": X}, constants={"n": 1}), "'n' of entry() is not a Con"),
        (Case(arguments={"x": X}), "entry None is no function with cute.jit"),
    ],
)
def test_entries_with_other_parameters(case: Case, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parameters(case)

    assert complaint in str(caught.value)
