# SPDX-License-Identifier: Apache-2.0
"""`jitgen inspect` and `jitgen cache report` on kernels that were really compiled."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import jitgen
from jitgen.cli import main
from jitgen.codegen.render import render
from jitgen.compile import inspect
from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from tests import needs
from tests.inspect_pages import Page

pytestmark = [
    needs.compiler,
    needs.linker,
    pytest.mark.skipif(inspect._nvdisasm() is None, reason="needs jitgen[inspect]"),
]

GPU = GroupedGemmConfig(layout=Layout.MASKED, tile=Tile(m=64, n=16, k=128)).name("sm_90a")
HOST = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=16, n=64, k=128)).name("cpu")


def test_a_page_of_two_kernels(
    shared_cache: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    One for a GPU, whose lines are linked, beside one for the host, which has no PTX.

    To ask all plans whether they choose the two takes seconds, which the night has.
    """
    jitgen.get_kernel(HOST)
    path = tmp_path / "page.html"
    words = ["inspect", GPU, "--against", HOST, "--plan", "deepseek-v3", "-o", str(path), "--json"]
    assert main.run(words) == 0
    document = json.loads(capsys.readouterr().out)
    read = Page(path.read_text(encoding="utf-8"))
    read.check()

    assert document["bytes"] == path.stat().st_size < 3 * 2**20
    gpu, host = document["kernels"]
    assert (gpu["name"], host["name"]) == (GPU, HOST)
    assert set(gpu["lines"]) == {"python", "ptx", "sass"}
    assert set(host["lines"]) == {"python", "host"}
    lines = [x for x in read.all("p") if "data-l" in x]
    linked = [x for x in lines if "id" not in x and "data-n" in x]  # of PTX
    machine = [x for x in lines if "data-n" not in x]
    assert len(linked) > 500
    assert len(machine) > 500
    sources = {x["data-l"] for x in lines if str(x.get("id", "")).startswith("k0-")}
    assert {x["data-l"] for x in (*linked, *machine)} <= sources
    counted = sum(int(str(x["data-c"])) for x in lines if "data-c" in x)
    assert counted == len(machine), "every instruction counts for a line"
    made = re.search(r"<p data-l=(\d+)><i>\w+</i> <b>QGMMA", path.read_text(encoding="utf-8"))
    assert made is not None
    rows = render(*GroupedGemmConfig.parse(GPU)).text.split("\n")
    assert "cute.gemm(" in "".join(rows[int(made[1]) - 2 : int(made[1]) + 1])


@pytest.mark.nightly
@pytest.mark.emulator
def test_what_the_emulator_executed_is_marked(shared_cache: None, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert main.run(["inspect", GPU, "--emulate", "-o", str(path)]) == 0
    read = Page(path.read_text(encoding="utf-8"))
    read.check()

    assert "All right." in read.words
    never = [x for x in read.all("p") if x.get("class") == "never"]
    assert 0 < len(never) < 200


def test_the_report_of_a_cache(
    shared_cache: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jitgen.get_kernel(HOST)
    path = tmp_path / "cache.html"
    assert main.run(["cache", "report", "-o", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    read = Page(path.read_text(encoding="utf-8"))
    read.check()

    assert document["states"]["found"] >= 1
    assert HOST in read.words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", HOST, "--emulate"], "is not emulated: leave out --emulate"),
        (["inspect", "unknown"], "is no kernel name"),
        (["inspect", HOST, "--plan", "unknown"], "no plan 'unknown'"),
        (["inspect", HOST, "--against", "ffff"], "no entry in"),
        (["inspect", HOST, "-o", "/nowhere/at/all.html"], "there is no folder /nowhere/at"),
    ],
)
def test_mistakes(
    shared_cache: None, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(words) in (1, 2)

    assert message in capsys.readouterr().err
