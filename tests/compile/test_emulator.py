# SPDX-License-Identifier: Apache-2.0
"""Real kernels end to end: compiled for a GPU, run without one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import inspect
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.emulator import Artifact, Program
from jitgen.errors import InputError
from jitgen.ops.grouped_gemm.cases import Sizes, make
from jitgen.verify import DeviceCall, OnDevices, device, verify
from jitgen.verify.artifacts import compiled
from tests import needs, problems
from tests.cli.conftest import Jitgen
from tests.cli.conftest import jitgen as jitgen_command  # noqa: F401

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

NAME = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a"
SMALL = "grouped_gemm_masked_e4m3_e4m3_row_bf16_t64x64x128_c1x2_acc1_sm_90a"
SPLIT_K = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_splitk2_sm_90a"
CONFIG, ARCH = GroupedGemmConfig.parse(NAME)


@pytest.fixture
def artifact(shared_cache: None) -> Artifact:
    """Of this session: a fixture of the module would find one in the user's cache."""
    return compiled(render(CONFIG, ARCH))


@pytest.mark.parametrize("modes", ["quick", pytest.param("all", marks=pytest.mark.nightly)])
def test_a_kernel_is_right_in_every_mode(modes: str) -> None:
    found = verify(CONFIG, ARCH, "2:260:136:784", modes=modes)

    assert found.is_right, found.to_json()
    integers, random = found.trials
    assert found.coverage[0].lacking  # the problem is too small, which is shown and not judged
    assert not found.gaps
    assert random.report is not None
    assert integers.wrong == 0
    assert 0 < random.frobenius < 2e-3
    assert random.largest < 5e-3
    run = random.report.runs[0]
    assert run.warp_instructions["promote"] > run.warp_instructions["load_tiles"] > 0
    assert run.counts["matrix_instructions"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "modes", ["random-1", pytest.param("random-0..2", marks=pytest.mark.nightly)]
)
def test_ctas_that_share_k_drift_apart(modes: str) -> None:
    """
    A warp without live rows waited until its CTA's sums were read, though no warp waits for it:
    with random-1 the barrier was two phases further on when it looked, and everything stood still.
    """
    found = verify(*GroupedGemmConfig.parse(SPLIT_K), modes=modes)

    assert found.is_right, found.to_json()


def test_line_information_changes_no_instruction(artifact: Artifact) -> None:
    plain, noted = inspect.ptx(render(CONFIG, ARCH)), artifact.ptx

    assert ".loc" not in plain
    assert ".loc" in noted
    assert [x.op for x in Program(plain).code] == [x.op for x in Program(noted).code]


def test_a_kernel_of_this_process() -> None:
    """`emulate` takes what `get_kernel` returns, and leaves cpu kernels of the process working."""
    config, arch = GroupedGemmConfig.parse(SMALL)
    kernel = jitgen.get_kernel(config, arch)
    sizes = Sizes(rows=(5, 0, 70), n=136, k=272, num_sms=4)
    problem = make(config, sizes, is_exact=True)

    report = jitgen.emulate(kernel, *problem.tensors, num_sms=4)

    assert report.is_clean, str(report)
    assert problem.wrong() == 0
    case = problems.make("masked", "row", [3, 5], 24, 40)
    problems.verify(case, jitgen.grouped_gemm(**case.arguments))


def test_a_kernel_on_two_devices() -> None:
    """`emulate` takes a call of it on each, with tensors of their own."""
    config, arch = GroupedGemmConfig.parse(SMALL)
    kernel = jitgen.get_kernel(config, arch)
    sizes = Sizes(rows=(5, 0, 70), n=136, k=272, num_sms=4)
    each = [make(config, sizes, is_exact=True) for _ in range(2)]
    calls = [
        DeviceCall(
            device=number,
            kernel=kernel,
            arguments={f"tensor {i}": tensor for i, tensor in enumerate(problem.tensors)},
        )
        for number, problem in enumerate(each)
    ]

    report = jitgen.emulate(OnDevices(calls=calls), modes="eager", num_sms=4)

    assert report.is_clean, str(report)
    assert [problem.wrong() for problem in each] == [0, 0]
    with pytest.raises(InputError, match="what devices run has its tensors"):
        jitgen.emulate(OnDevices(calls=calls), torch.zeros(1))


def test_grouped_gemm_on_an_emulated_gpu() -> None:
    case = problems.make("ragged", "block128", [130, 0, 7], 136, 272, is_exact=True)

    with device("sm_90a", num_sms=4) as reports:
        out = jitgen.grouped_gemm(**case.arguments)
        again = jitgen.grouped_gemm(
            **{**case.arguments, "out": torch.full_like(out, problems.POISON)}
        )

    problems.verify_exact(case, out)
    problems.verify_exact(case, again)
    assert len(reports) == 2
    assert reports[0].arch == Arch.SM_90A
    case = problems.make("ragged", "block128", [13], 20, 40)  # N that no GPU kernel takes
    problems.verify(case, jitgen.grouped_gemm(**case.arguments))


@pytest.mark.parametrize(
    ("left_out", "kind", "places"),
    [
        (r"wgmma\.wait_group[^;]*;", "race", ["(multiply)", "(copy_b)"]),
        (r"cp\.async\.bulk\.wait_group[^;]*;", "race", ["(store_tile)", "(stage_block)"]),
        (r"fence\.proxy\.async[^;]*;", "proxy", ["(stage_block)", "(store_tile)"]),
        (r"griddepcontrol\.wait;", "race", ["before griddepcontrol.wait"]),
    ],
)
def test_a_wait_that_is_missing_is_found(
    artifact: Artifact, left_out: str, kind: str, places: list[str]
) -> None:
    """In the first mode, and with both places in the generated source."""
    worse = replace(artifact, ptx=re.sub(left_out, "", artifact.ptx))
    found = verify(CONFIG, ARCH, "2:260:136:784", modes="eager", artifact=worse)

    text = [f"{finding}" for trial in found.trials for _, finding in trial.findings]
    assert any(x.startswith(kind) and all(place in x for place in places) for x in text), text


@pytest.mark.nightly
def test_waits_in_a_loop_that_shallow_problems_never_enter() -> None:
    """
    With K of 11 blocks, two CTAs have five or six each, and a loop of eight is never entered: its
    waits could go. Now they are missed, and a problem that does not enter it is no proof.
    """
    config, arch = GroupedGemmConfig.parse(SPLIT_K)
    artifact = compiled(render(config, arch))
    waits = re.compile(r"wgmma\.wait_group[^;]*;")
    *before, rest = (match.start() for match in waits.finditer(artifact.ptx))
    assert len(before) == 8  # the main loop, then the one for what is left
    head, tail = artifact.ptx[:rest], artifact.ptx[rest:]
    worse = replace(artifact, ptx=waits.sub("", head) + tail)
    wide, deep, flat = Sizes.of(config, arch)

    found = verify(config, arch, deep, modes="eager", artifact=worse)

    assert {x.kind for trial in found.trials for _, x in trial.findings} & {"race", "register"}
    for sizes in (wide, flat):
        found = verify(config, arch, sizes, modes="eager", artifact=worse)
        assert found.is_right
        assert any("wgmma" in missed.place for missed in found.coverage[0].lacking)


def test_the_command(jitgen_command: Jitgen) -> None:  # noqa: F811
    done = jitgen_command("verify", NAME, "--problem 2:100:72:144 --json")

    assert done.code == 0, done.err
    (kernel,) = done.document["kernels"]
    assert kernel["right"]
    assert kernel["trials"][0]["sizes"]["n"] == 72
    assert kernel["coverage"][0]["never_executed"]
