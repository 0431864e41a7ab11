# SPDX-License-Identifier: Apache-2.0
"""What docs/plans.md shows is what happens: its files are plans, and its commands work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from jitgen import plans
from jitgen.cli import main
from jitgen.plans import read, recorder

TEXT = (Path(__file__).parents[2] / "docs" / "plans.md").read_text(encoding="utf-8")
PLANS = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
(PROGRAM,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
OF_A_MODEL, CONSOLE, LOCKED = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
STARTED, *COMMANDS = [line.removeprefix("$ ") for line in f"{CONSOLE}{LOCKED}".strip().splitlines()]
SLOW = ("tune",)


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_its_plans_can_be_read(number: int, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLANS[number], encoding="utf-8")

    assert plans.load(path).sweeps


def test_every_key_is_documented() -> None:
    for name in (*read.keys_of("grouped_gemm"), read.OP, read.OPTIONAL, read.CALLS):
        assert f"`{name}`" in TEXT


def test_the_plan_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands that it shows, of a small model, without compiling."""
    monkeypatch.chdir(tmp_path)
    model = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
    sizes = {"hidden_size": 256, "moe_intermediate_size": 128, "hidden_act": "silu"}
    Path("config.json").write_text(json.dumps(model | sizes | {"norm_topk_prob": True}))
    for line in OF_A_MODEL.strip().splitlines():
        words = shlex.split(line.removeprefix("$ jitgen "))
        words += ["--dry-run"] if words[0] == "prewarm" else []
        assert main.run(words) == 0, (line, capsys.readouterr())


@pytest.mark.parametrize("has_slow", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_program_is_recorded_and_its_plan_used(
    has_slow: bool,
    shared_cache: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The program that it shows, then every command, as a reader would run them."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "calls.json"
    assert STARTED.split()[:2] == ["JITGEN_RECORD=$PWD/calls.json", "JITGEN_ARCH=cpu"]
    with monkeypatch.context() as started:
        started.setenv("JITGEN_RECORD", str(path))
        started.setenv("JITGEN_ARCH", "cpu")
        exec(PROGRAM, {})  # noqa: S102  # the document is ours
        recorder.end(path)
    for line in COMMANDS:
        program, *words = shlex.split(line)
        assert program == "jitgen"
        if words[0] not in SLOW or has_slow:
            assert main.run(words) == 0, (line, capsys.readouterr())

    made = (tmp_path / "server.toml").read_text(encoding="utf-8")
    assert PLANS[-1].strip() in made, "the entry that it shows"
