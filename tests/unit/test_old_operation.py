# SPDX-License-Identifier: Apache-2.0
"""The old name of an operation is read wherever files, commands and other programs have it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen import plans
from jitgen.codegen.render import render
from jitgen.config import Config
from jitgen.config.activation_quantize import ActivationQuantizeConfig, ActivationQuantizeProblem
from jitgen.errors import ConfigError
from jitgen.plans import recording
from jitgen.selection.record import parse_problem, problem_json
from jitgen.support.moved import DROPPED_IN
from tests.cli.conftest import Jitgen
from tests.cli.conftest import jitgen as command

__all__ = ["command"]

OLD, NEW = "silu_mul_quantize", "activation_quantize"
KERNEL = f"{NEW}_ragged_none_swiglu_cpu"
CONFIG, ARCH = ActivationQuantizeConfig.parse(KERNEL)
PROBLEM = ActivationQuantizeProblem(layout="ragged", groups=3, m=6, n=256)


def as_before(text: str) -> str:
    assert NEW in text
    return text.replace(NEW, OLD)


def warned(read: Callable[[], Any]) -> Any:
    """Return what `read` does with an old name, of which it warns."""
    text = f"operation {OLD} is now {NEW}; jitgen {DROPPED_IN} drops the old name"
    with pytest.warns(DeprecationWarning, match=text):
        return read()


def test_a_kernel_is_found_by_its_old_name() -> None:
    assert warned(lambda: Config.parse(as_before(KERNEL))) == (CONFIG, ARCH)
    assert warned(lambda: jitgen.check(as_before(KERNEL))) == jitgen.check(KERNEL)
    with pytest.raises(ConfigError, match=f"`jitgen configs --op {NEW}` lists those of {NEW}"):
        warned(lambda: Config.parse(f"{OLD}_round_cpu"))


@pytest.mark.parametrize("kind", [Config, ActivationQuantizeConfig])
def test_a_config_of_an_older_task_or_request_is_read(kind: type[Config]) -> None:
    document = json.loads(as_before(json.dumps(CONFIG.to_json())))

    assert warned(lambda: kind.from_json(document)) == CONFIG
    with pytest.raises(ConfigError, match=f"op must be one of {NEW} .got 'silu_mul'"):
        ActivationQuantizeConfig.from_json({**document, "op": "silu_mul"})


def test_an_older_plan_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    now = (
        f'[[problems]]\nop = "{NEW}"\nlayout = "ragged"\ngroups = 8\nrows_per_group = 4\nn = 256\n'
    )
    path.write_text(as_before(now), encoding="utf-8")
    found = warned(lambda: plans.load(path))
    path.write_text(now, encoding="utf-8")

    assert found.digest == plans.load(path).digest


def test_an_older_recording_counts_with_a_newer_one(tmp_path: Path) -> None:
    calls = recording.Calls(arch=ARCH, problem=PROBLEM.with_mean(1), rows={2: 5})
    now, before = tmp_path / "now.json", tmp_path / "before.json"
    one = recording.Recording(calls=(calls,), kernels={KERNEL: 3}, others=0)
    now.write_text("".join(one.lines()), encoding="utf-8")
    before.write_text(as_before(now.read_text("utf-8")), encoding="utf-8")
    both = recording.added([recording.read(now), warned(lambda: recording.read(before))])

    assert {each.problem: each.rows for each in both.calls} == {calls.problem: {2: 10}}
    assert both.kernels == {KERNEL: 6}


def test_the_problem_of_an_older_record_is_read() -> None:
    document = json.loads(as_before(json.dumps(problem_json(PROBLEM))))

    assert warned(lambda: parse_problem(document)) == PROBLEM


def test_a_kernel_that_was_edited_before_has_the_present_name(tmp_path: Path) -> None:
    text = render(CONFIG, ARCH).text
    path = tmp_path / "mine.py"
    path.write_text(as_before(text), encoding="utf-8")
    found = warned(lambda: jitgen.override(path))

    assert (found.config, found.name, found.text) == (CONFIG, KERNEL, text)


def test_a_command_takes_the_old_name_and_prints_the_new_one(command: Jitgen) -> None:
    for words in (f"configs --op {NEW} --arch cpu", f"show {KERNEL}"):
        before = warned(lambda words=words: command(as_before(words), "--json"))

        assert before.document == command(words, "--json").document
        assert OLD not in before.out
