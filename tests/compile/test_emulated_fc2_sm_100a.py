# SPDX-License-Identifier: Apache-2.0
"""
`moe_fc2_dense` on an emulated B200: `test_emulated_fc2` does the same on sm_90a, and
`test_emulator_kernels` verifies the menu.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch, DType, ScaleGranularity
from jitgen.config.grouped_gemm import Cluster, Operands, Pipeline, Schedule, Tile
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.errors import InputError
from jitgen.ops.moe_fc2_dense.samples import BLOCKS, Sizes, make, of_sizes
from jitgen.targets.legality import rules
from jitgen.verify import device, verify
from tests import needs
from tests.sass import k_loop, wrapped

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

SM_100A = Arch("sm_100a")
CONFIG = MoEFc2DenseConfig(tile=Tile(m=128, n=64, k=128), pipeline=Pipeline(num_acc_stage=2))
MXFP8 = Operands(scale_granularity=ScaleGranularity.MX32)
MXFP4 = replace(MXFP8, a_dtype=DType.E2M1, b_dtype=DType.E2M1)
NVFP4 = replace(MXFP4, scale_granularity=ScaleGranularity.NV16)
PAIR = MoEFc2DenseConfig(
    tile=Tile(m=256, n=64, k=128),
    cluster=Cluster(m=2),
    pipeline=Pipeline(num_acc_stage=3),
    schedule=Schedule(two_cta=True),
)
SIZES = [
    Sizes(tokens=1, experts=1, n=8, k=16, top_k=1, num_sms=4),
    Sizes(tokens=129, experts=11, n=136, k=400, top_k=3, num_sms=2),
    Sizes(tokens=32, experts=3, n=72, k=128, top_k=1, num_sms=4),
    Sizes(tokens=3, experts=2, n=8, k=4224, top_k=1, num_sms=2),
    Sizes(tokens=40, experts=9, n=64, k=16, top_k=0, num_sms=2),
    Sizes(tokens=128, experts=76, n=8, k=16, top_k=9, num_sms=2),
]
"""One of everything; tails; whole blocks, and a whole part of a; an expert of more k-blocks than a
chunk; tokens without experts; more experts than a list holds."""

ATOM_SIZES = [
    pytest.param(Sizes(tokens=129, experts=11, n=136, k=416, top_k=3, num_sms=2), id="tails"),
    *(
        pytest.param(sizes, id=str(sizes), marks=pytest.mark.nightly)
        for sizes in (
            Sizes(tokens=1, experts=1, n=8, k=32, top_k=1, num_sms=4),
            Sizes(tokens=32, experts=3, n=72, k=256, top_k=1, num_sms=4),
            Sizes(tokens=3, experts=2, n=8, k=4224, top_k=1, num_sms=2),
            Sizes(tokens=40, experts=9, n=64, k=32, top_k=0, num_sms=2),
            Sizes(tokens=128, experts=76, n=8, k=32, top_k=9, num_sms=2),
        )
    ),
]
"""The same, with an expert's K in whole vectors of e2m1."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    "config", [CONFIG, pytest.param(PAIR, marks=pytest.mark.nightly)], ids=["one CTA", "a pair"]
)
def test_right(config: MoEFc2DenseConfig, sizes: Sizes) -> None:
    """Through the public function; the second call is a warm one."""
    with device(SM_100A, num_sms=sizes.num_sms):
        for seed in (0, 1):
            case = make(config, sizes, is_exact=seed == 0, seed=seed)
            jitgen.moe_fc2_dense(**case.arguments, config=config)

            assert case.wrong() == 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "config",
    [
        MoEFc2DenseConfig(
            operands=Operands(out_dtype=DType.F32),
            tile=Tile(m=128, n=64, k=128),
            cluster=Cluster(n=2),
            pipeline=Pipeline(num_acc_stage=2),
        ),
        MoEFc2DenseConfig(
            operands=Operands(out_dtype=DType.F16),
            tile=Tile(m=128, n=128, k=128),
            cluster=Cluster(m=2),
        ),
        MoEFc2DenseConfig(
            tile=Tile(m=128, n=128, k=128),
            pipeline=Pipeline(num_acc_stage=3),
            schedule=Schedule(split_k=4, use_pdl=False),
        ),
        PAIR,
        MoEFc2DenseConfig(
            operands=replace(MXFP8, out_dtype=DType.F32),
            tile=Tile(m=128, n=64, k=128),
            cluster=Cluster(n=2),
            pipeline=Pipeline(num_acc_stage=4),
        ),
        MoEFc2DenseConfig(
            operands=replace(NVFP4, out_dtype=DType.F16),
            tile=Tile(m=128, n=128, k=256),
            cluster=Cluster(m=2),
        ),
        MoEFc2DenseConfig(
            operands=MXFP4,
            tile=Tile(m=128, n=128, k=256),
            pipeline=Pipeline(num_acc_stage=2),
            schedule=Schedule(split_k=4, use_pdl=False),
        ),
        MoEFc2DenseConfig(
            operands=NVFP4,
            tile=Tile(m=256, n=64, k=256),
            cluster=Cluster(m=2),
            schedule=Schedule(two_cta=True),
        ),
    ],
    ids=lambda config: config.to_name(),
)
def test_what_no_menu_has(config: MoEFc2DenseConfig) -> None:
    """Clean, and everything reached: verified as `jitgen verify` does."""
    found = verify(config, SM_100A)

    assert found.is_right, found.to_json()


IN_ATOMS = [
    pytest.param(replace(config, operands=types, tile=tile), marks=marks, id=f"{name} {tile.n}")
    for config, types, tile, name, marks in (
        (CONFIG, MXFP8, Tile(m=128, n=64, k=128), "MXFP8", ()),
        (CONFIG, NVFP4, Tile(m=128, n=128, k=256), "NVFP4", pytest.mark.nightly),
        (CONFIG, MXFP4, Tile(m=128, n=64, k=256), "MXFP4", pytest.mark.nightly),
        (PAIR, MXFP8, Tile(m=256, n=64, k=128), "a pair, MXFP8", pytest.mark.nightly),
        (PAIR, NVFP4, Tile(m=256, n=64, k=256), "a pair, NVFP4", pytest.mark.nightly),
    )
]


@pytest.mark.parametrize("sizes", ATOM_SIZES)
@pytest.mark.parametrize("config", IN_ATOMS)
def test_scales_of_the_tensor_core(config: MoEFc2DenseConfig, sizes: Sizes) -> None:
    """Also where scales are NaN, of experts that no token has and of rows that are no token's."""
    with device(SM_100A, num_sms=sizes.num_sms):
        for is_exact in (True, False):
            case = make(config, sizes, is_exact=is_exact)
            jitgen.moe_fc2_dense(**case.arguments, config=config)

            assert case.wrong() == 0


@pytest.mark.parametrize("name", ["a_scale", "b_scale"])
def test_atoms_may_lie_apart(name: str) -> None:
    """Along K, too: each second one of a larger tensor."""
    config, sizes = IN_ATOMS[0].values[0], Sizes(tokens=20, experts=3, n=8, k=288, top_k=2)
    case = make(config, sizes, is_exact=True)
    given = case.arguments
    apart = given[name].repeat_interleave(2, dim=2)[:, :, ::2]
    apart.view(torch.uint8).copy_(given[name].view(torch.uint8))
    assert apart.stride(2) == 1024
    with device(SM_100A, num_sms=1):
        jitgen.moe_fc2_dense(**given | {name: apart}, config=config)

    assert case.wrong() == 0


def test_too_few_atoms_are_refused() -> None:
    """By a warm call, too, for the kernel would read what is not there."""
    config, sizes = IN_ATOMS[0].values[0], Sizes(tokens=129, experts=1, n=8, k=32, top_k=1)
    case = make(config, sizes, is_exact=True)
    with device(SM_100A, num_sms=1):
        jitgen.moe_fc2_dense(**case.arguments, config=config)
        few = case.arguments | {"a_scale": case.arguments["a_scale"][:, :1]}
        with pytest.raises(InputError, match=r"a_scale: must have shape \(1, 2, 1, 512\)"):
            jitgen.moe_fc2_dense(**few, config=config)


def test_sizes_that_no_vector_covers_are_refused() -> None:
    case = of_sizes(BLOCKS, Sizes(tokens=2, experts=2, n=12, k=16, top_k=1), is_exact=True)
    with device(SM_100A, num_sms=1), pytest.raises(InputError, match="N a multiple of 8"):
        jitgen.moe_fc2_dense(**case.arguments)


MENU = [
    config
    for types in (Operands(), MXFP8, MXFP4, NVFP4)
    for config in rules(SM_100A, "moe_fc2_dense").candidates(
        MoEFc2DenseProblem(
            groups=256,
            m=64,
            n=7168,
            k=256,
            a_dtype=types.a_dtype,
            scale_granularity=types.scale_granularity,
        )
    )
]
MULTIPLY = {Operands(): 49, MXFP8: 45, MXFP4: 51, NVFP4: 63}
"""
Instructions of the MMA warp for each k-block, by the operands: beside four of the tensor core
2, 4 and 8 copies of scales to tensor memory.
"""

LOAD = {Operands(): 96, MXFP8: 72, MXFP4: 74, NVFP4: 74}
"""Those of the load warp: scales in atoms have one place."""

UPDATE = {64: 68, 128: 106}
"""Those of an update warp for each k-block or expert, by the columns of a tile."""


@cache
def _library(config: MoEFc2DenseConfig) -> bytes:
    made = compiler.compile_source(render(config, SM_100A), links=False)
    return made.files[made.library]


@pytest.mark.skipif(inspect._nvdisasm() is None, reason="needs nvdisasm: jitgen[inspect]")
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, marks=pytest.mark.nightly if number != 3 else (), id=config.to_name())
        for number, config in enumerate(MENU)
    ],
)
def test_no_spills_and_few_instructions(config: MoEFc2DenseConfig) -> None:
    """And no loop around a single asynchronous instruction."""
    library = _library(config)
    text = inspect.sass(library)

    assert inspect.resources(library).stack_bytes == inspect.spills(text) == 0
    assert wrapped(text) == []
    products = k_loop(text, "UTCOMMA" if config.operands.a_dtype is DType.E2M1 else "UTCQMMA")
    assert len(products) <= MULTIPLY[config.operands]
    assert len(k_loop(text, "UTMALDG")) <= LOAD[config.operands]
    assert len(k_loop(text, "LDTM")) <= UPDATE[config.tile.n]
