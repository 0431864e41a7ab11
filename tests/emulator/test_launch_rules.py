# SPDX-License-Identifier: Apache-2.0
"""Launches that hardware refuses, each beside one that it takes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from jitgen.emulator.api import emulate
from jitgen.emulator.artifact import Artifact
from jitgen.emulator.machine.launch_rules import Kernel, as_launched
from jitgen.emulator.machine.limits import most_registers, registers_of
from jitgen.emulator.machine.machine import Launch
from jitgen.errors import EmulationError, MachineFault
from tests.emulator.host import KERNEL, build

KIB = 1024


def launched(**options: Any) -> Launch:
    """Return a launch of 256 threads as hardware makes it, of a kernel for sm_90a."""
    fields = {
        "target": "sm_90a", "opcodes": (), "directives": {}, "shared_end": KIB, "registers": 0,
    }  # fmt: skip
    of_kernel = {name: options.pop(name, value) for name, value in fields.items()}
    launch = {"grid": (8, 1, 1), "block": (256, 1, 1), "most_shared_bytes": 2**20, **options}
    return as_launched(Kernel(**of_kernel), Launch(**launch))


def clusters(x: int, **options: Any) -> dict[str, Any]:
    return {"grid": (32, 1, 1), "cluster": (x, 1, 1), "names_cluster": True, **options}


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "shared memory of sm_90a": (
        {"shared_bytes": 227 * KIB + 1}, {"shared_bytes": 227 * KIB}, "232449 bytes of shared",
    ),
    "shared memory of sm_120a": (
        {"shared_bytes": 100 * KIB, "target": "sm_120a"},
        {"shared_bytes": 99 * KIB, "target": "sm_120a"},
        "it has 101376 for a CTA",
    ),
    "static shared memory counts": (
        {"shared_bytes": 226 * KIB, "shared_end": 3 * KIB},
        {"shared_bytes": 225 * KIB, "shared_end": 3 * KIB},
        "2048 of them static",
    ),
    "more than 48 KiB without consent": (
        {"shared_bytes": 48 * KIB + 16, "most_shared_bytes": None},
        {"shared_bytes": 48 * KIB, "most_shared_bytes": None},
        "MaxDynamicSharedMemorySize",
    ),
    "less consent than the launch takes": (
        {"shared_bytes": 64 * KIB, "most_shared_bytes": 60 * KIB},
        {"shared_bytes": 60 * KIB, "most_shared_bytes": 60 * KIB},
        "the kernel may have 61440",
    ),
    "threads": ({"block": (1024, 2, 1)}, {"block": (512, 2, 1)}, "2048 threads"),
    "block": ({"block": (1, 1, 128)}, {"block": (1, 1, 64)}, "a CTA of"),
    "grid": ({"grid": (1, 65536, 1)}, {"grid": (1, 65535, 1)}, "a grid of"),
    "grid that is empty": ({"grid": (0, 1, 1)}, {"grid": (1, 1, 1)}, "a grid of"),
    "registers of all threads": (
        {"registers": 168, "block": (512, 1, 1)},
        {"registers": 168, "block": (384, 1, 1)},
        "512 threads with 168 registers",
    ),
    "nine warps take the registers of twelve": (
        {"registers": 224, "block": (288, 1, 1)},
        {"registers": 168, "block": (288, 1, 1)},
        "take 86016 of 65536",
    ),
    "maxnreg of all threads": (
        {"directives": {"maxnreg": (72,)}, "block": (1024, 1, 1)},
        {"directives": {"maxnreg": (64,)}, "block": (1024, 1, 1)},
        "1024 threads with 72 registers",
    ),
    "machine code beyond maxnreg": (
        {"directives": {"maxnreg": (64,)}, "registers": 80},
        {"directives": {"maxnreg": (80,)}, "registers": 80},
        ".maxnreg says 64",
    ),
    "reqntid": (
        {"directives": {"reqntid": (128,)}}, {"directives": {"reqntid": (256, 1, 1)}}, ".reqntid",
    ),
    "maxntid": (
        {"directives": {"maxntid": (128,)}}, {"directives": {"maxntid": (32, 16)}}, ".maxntid",
    ),
    "grid and cluster": (
        clusters(4, grid=(30, 1, 1)), clusters(4), "not a multiple of the cluster",
    ),
    "a cluster beyond 8 without consent": (
        clusters(16), clusters(16, is_nonportable=True), "NonPortableClusterSizeAllowed",
    ),
    "a cluster beyond 16": (
        clusters(32, is_nonportable=True), clusters(8), "a cluster of 32 CTAs; it has 16",
    ),
    "launch and directive": (
        clusters(4, directives={"reqnctapercluster": (2, 1, 1)}),
        clusters(2, directives={"reqnctapercluster": (2,)}),
        ".reqnctapercluster says (2, 1, 1)",
    ),
    "explicitcluster": (
        {"directives": {"explicitcluster": ()}},
        {"directives": {"explicitcluster": (), "reqnctapercluster": (2,)}},
        "nothing says what a cluster is",
    ),
    "maxclusterrank": (
        clusters(4, directives={"maxclusterrank": (2,)}),
        clusters(2, directives={"maxclusterrank": (2,)}),
        ".maxclusterrank says 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_refused_and_taken(name: str) -> None:
    wrong, right, message = MISTAKES[name]
    with pytest.raises(MachineFault) as refused:
        launched(**wrong)
    assert message in str(refused.value)
    launched(**right)


INSTRUCTIONS = {
    "tcgen05.mma.cta_group::1.kind::f16": "sm_100a",
    "tcgen05.ld.sync.aligned.32x32b.x8.b32": "sm_103a",
    "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3": "sm_90a",
    "mma.sync.aligned.kind::mxf8f6f4.block_scale.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0":
        "sm_120a",
}  # fmt: skip


@pytest.mark.parametrize("opcode", INSTRUCTIONS)
def test_instructions_of_one_target(opcode: str) -> None:
    home = INSTRUCTIONS[opcode]
    code = {"opcodes": ((7, opcode), (9, "add.f32"))}
    launched(target=home, **code)
    for target in {"sm_90a", "sm_100a", "sm_120a", "sm_100", home[:-1]} - {home}:
        if target[:5] != home[:5] or target[-1] != "a":
            with pytest.raises(MachineFault, match=r"it has no .*\(line 7\)"):
                launched(target=target, **code)


@pytest.mark.parametrize(
    ("opcode", "lacking"),
    [("setmaxnreg.inc.sync.aligned.u32", "sm_90"), ("fma.rn.f32x2", "sm_90a"),
     ("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128", "sm_90a"),
     ("cvt.rn.satfinite.e2m1x2.f32", "sm_90a"), ("fma.rn.f32.bf16", "sm_90a"),
     ("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile", "sm_120a")],
)  # fmt: skip
def test_instructions_that_some_targets_lack(opcode: str, lacking: str) -> None:
    launched(target="sm_100a", opcodes=((1, opcode),))
    with pytest.raises(MachineFault, match="it has no"):
        launched(target=lacking, opcodes=((1, opcode),))


def test_an_unknown_target() -> None:
    with pytest.raises(EmulationError, match="knows no target 'sm_80'"):
        launched(target="sm_80")


def test_the_cluster_of_the_kernel() -> None:
    assert launched(directives={"reqnctapercluster": (2, 2, 1)}, grid=(4, 4, 1)).cluster_size == 4


@pytest.mark.parametrize(
    ("threads", "registers"), [(384, 168), (640, 96), (288, 168), (256, 248), (128, 248)]
)
def test_registers_of_a_launch(threads: int, registers: int) -> None:
    """What ptxas gives kernels of so many threads; with five warpgroups 480 for all together."""
    assert most_registers(threads) == registers
    assert registers_of(threads, registers) <= 65536
    found = launched(directives={"reqntid": (threads,)}, block=(threads, 1, 1))
    assert found.registers == registers
    assert launched().registers == 0


PTX = """
.version 8.8
.target sm_90a
.visible .entry {kernel}(.param .u64 p0, .param .u32 p1)
.reqntid 128, 1, 1
.reqnctapercluster {cluster}
{{
    griddepcontrol.wait;
    ret;
}}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_a_call_is_refused_before_it_runs(tmp_path: Path) -> None:
    def run(library: bytes, cluster: str) -> bool:
        ptx = PTX.format(kernel=KERNEL, cluster=cluster)
        artifact = Artifact(library=library, symbol="double", ptx=ptx)
        return emulate(artifact, 0, 0, modes="eager", num_sms=4).is_clean

    library = build(tmp_path)
    assert run(library, "2, 1, 1")
    with pytest.raises(MachineFault, match="reqnctapercluster says"):
        run(library, "4, 1, 1")
