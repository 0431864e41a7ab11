# SPDX-License-Identifier: Apache-2.0
"""`jitgen bench layer`, on saved reports and on machines without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from jitgen.autotune.measure.clock import Call
from jitgen.bench.layer.cases import Case
from jitgen.bench.layer.ours import STEPS
from jitgen.bench.layer.report import LayerReport, Measured
from jitgen.bench.layer.run import Method
from jitgen.bench.report import OURS
from tests.cli.conftest import Jitgen


def found(tokens: int, time: float) -> Measured:
    return Measured(
        case=Case(experts=32, tokens=tokens),
        active=8,
        floor_us=84.0,
        times_us={OURS: time, "torch-inductor": 300.0, "deep-gemm-masked": 130.0},
        spreads={OURS: 0.01},
        errors={OURS: 0.043},
        steps_us=dict.fromkeys(STEPS, 4.0),
        missing={"deep-gemm-contiguous": "Unavailable: deep_gemm cannot be imported"},
        notes={"vllm-triton": "its default"},
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("options", ["", "--quick", "--experts 8,32 --tokens 1 --side jitgen"])
def test_without_a_gpu(jitgen: Jitgen, options: str) -> None:
    done = jitgen("bench layer", *options.split())

    assert (done.code, done.out) == (1, "")
    assert done.err.endswith("error: the layer suite needs a GPU that jitgen has kernels for\n")


@pytest.mark.parametrize(
    "options",
    [
        "--experts 4",
        "--routed --experts 512",
        "--from x.json --routed",
        "--tokens 0",
        "--tokens few",
        "--side vllm",
        "--from x.json --quick",
        "--ranks 1",
        "--ranks 2 --quick",
        "--ranks 3 --kernels",
        "--ranks 2 --experts 8,16",
    ],
)
def test_mistakes(jitgen: Jitgen, options: str) -> None:
    assert jitgen("bench layer", *options.split()).code == 2


def test_the_kernels(jitgen: Jitgen) -> None:
    """With and without an early start, of every operation; without memory for the weights."""
    done = jitgen("bench layer --kernels --json --experts 256 --tokens 1,16384")
    names = done.document["kernels"]

    assert done.code == 0
    assert {name.split("_")[0] for name in names} == {
        "route",
        "permute",
        "grouped",
        "activation",
        "combine",
    }
    assert {name.endswith("_pdl_sm_90a") for name in names} == {True, False}


def test_a_saved_report_is_shown_and_written(jitgen: Jitgen, tmp_path: Path) -> None:
    saved, written = tmp_path / "layer.json", tmp_path / "layer.md"
    LayerReport(found=[found(1, 100.0)], conditions={"gpu": "NVIDIA H200"}).save(saved)
    done = jitgen("bench layer --from", str(saved), "--report", str(written))

    assert done.code == 1  # one token takes more than 94 us
    assert "100.0 (1.19)" in done.out
    assert "130.0 (1.30)" in done.out
    text = written.read_text(encoding="utf-8")
    assert text.startswith("# jitgen bench layer: NVIDIA H200\n")
    assert "| vllm-triton | 1 | its default |" in text
    assert "| one token: 32 experts, 1 tokens | 100.000 us | 94.0 | no |" in text
    document = jitgen("bench layer --json --from", str(saved)).document
    assert document["cases"][0]["times_us"][OURS] == 100.0
    assert not document["ok"]
    LayerReport(found=[found(1, 90.0)]).save(saved)
    assert jitgen("bench layer --from", str(saved)).code == 0


def test_a_run_is_saved(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[int, Method]] = []

    def run(report: LayerReport, cases: Sequence[Case], how: Method, save: Call) -> Iterator[Case]:
        seen.append((len(cases), how))
        report.found.append(found(8, 85.0))
        save()
        yield cases[0]

    monkeypatch.setattr("jitgen.bench.layer.run.run", run)
    path = tmp_path / "layer.json"
    done = jitgen("bench layer --quick --save", str(path))

    assert done.code == 0, done.err
    assert LayerReport.read(path).found == [found(8, 85.0)]
    ((count, how),) = seen
    assert count == 4
    assert "torch-inductor" not in how.sides
    assert how.seconds == 45.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.usefixtures("shared_cache")
def test_a_layer_that_processes_share(jitgen: Jitgen) -> None:
    done = jitgen("bench layer --ranks 2 --tokens 3 --rounds 2 --json")
    rows = done.document["rows"]

    assert done.code == 0, done.err
    assert [row["what"].removeprefix("3 tokens of each of 2 ranks: ") for row in rows] == [
        "windows alone",
        "windows of quantised tokens alone",
        "collectives alone",
        "the layer by windows",
        "the layer by windows of quantised tokens",
        "the layer by collectives",
        "the layer alone on the same rows",
    ]
    assert all(row["value"] > 0 and "in 2 rounds" in row["detail"] for row in rows)


def test_the_kernels_of_a_layer_that_ranks_share(jitgen: Jitgen) -> None:
    """Those of a share of the experts, and those between ranks."""
    names = jitgen("bench layer --ranks 4 --tokens 8 --kernels --json").document["kernels"]

    assert {"dispatch_bf16_sm_90a", "dispatch_bf16_block128_sm_90a"} <= {*names}
    assert any(name.startswith("combine_ranks_bf16") for name in names)
    assert any(name.startswith("route_given_e64") for name in names)
    assert not any(name.startswith("route_given_e256") for name in names)
