# SPDX-License-Identifier: Apache-2.0
"""`add_lora`: its reference beside plain matrices, its kernels beside its reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jitgen
from jitgen.codegen.render import render
from jitgen.compile import compiler, inspect
from jitgen.config import Arch
from jitgen.config.add_lora import AddLoraConfig, AddLoraProblem, Tiling
from jitgen.errors import ConfigError, InputError
from jitgen.ops.add_lora import samples
from jitgen.ops.route.reference import sort_pairs
from jitgen.targets.legality import check
from tests import needs
from tests.arguments import int32
from tests.compile.kernels import on_gpu

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

KERNELS = [
    AddLoraConfig(by_row=by_row, tiling=tiling)
    for by_row, tiling in (
        (False, Tiling()),
        (True, Tiling(threads=512, ctas_per_sm=1)),
        (True, Tiling(threads=128, ctas_per_sm=3, use_pdl=False)),
        (False, Tiling(threads=128, ctas_per_sm=1)),
        (True, Tiling(early=True)),
    )
]
every_way = pytest.mark.parametrize("by_row", [False, True])


def given(by_row: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    topk_ids = int32(3, 4, 2, 1, 3, 2).view(3, 2)
    rows = sort_pairs(topk_ids, experts=5, first_expert=2, local_experts=2)
    return {
        "y": torch.randn(6, 24).bfloat16(),
        "x": torch.randn(6 if by_row else 3, 40).bfloat16(),
        "a": torch.randn(2, 2, 8, 40).bfloat16(),
        "b": torch.randn(2, 2, 24, 8).bfloat16(),
        "scales": torch.tensor([0.5, 1.5]),
        "adapter_ids": int32(1, 0, -1),
        "topk_ids": topk_ids,
        "permutation": rows.permutation,
        "first_expert": 2,
        "by_row": by_row,
    }


@every_way
def test_beside_plain_matrices(by_row: bool) -> None:
    """
    Rows 0 and 1 are tokens 1 and 2 with expert 2, rows 2 and 3 tokens 0 and 2 with expert 3; other
    pairs are of other ranks.
    """
    named = given(by_row)
    out = jitgen.add_lora(**named)
    y, x, a, b = (named[name].float() for name in "yxab")
    pairs = [(0, 1, 0, 0), (2, 0, 1, 1)]  # row, token, adapter, expert here
    for row, token, adapter, expert in pairs:
        of_x = x[row if by_row else token]
        added = named["scales"][adapter] * (b[adapter, expert] @ (a[adapter, expert] @ of_x))
        assert torch.allclose(out[row].float(), y[row] + added, rtol=2**-7, atol=2**-5)
    assert torch.equal(out[[1, 3]], named["y"][[1, 3]])


@every_way
def test_in_place_and_again(by_row: bool) -> None:
    """The same bits as in a new tensor; rows of no pair stay as they are."""
    named = given(by_row)
    new, warm = jitgen.add_lora(**named), jitgen.add_lora(**named)
    out = torch.full_like(new, 7.0)
    assert jitgen.add_lora(**named, out=out) is out
    y = named["y"].clone()
    jitgen.add_lora(**named | {"y": y}, out=y.view(y.shape))

    for found in (warm, out, y):
        assert torch.equal(found[:4], new[:4])
    assert torch.equal(y[4:], named["y"][4:])
    assert (out[4:] == 7.0).all()


def test_no_rows() -> None:
    named = given() | {
        "y": torch.zeros(0, 24).bfloat16(),
        "x": torch.zeros(0, 40).bfloat16(),
        "adapter_ids": int32(),
        "topk_ids": int32().view(0, 2),
        "permutation": int32(),
    }

    assert jitgen.add_lora(**named).shape == (0, 24)


@every_way
@pytest.mark.parametrize("is_exact", [True, False])
def test_on_the_cpu(by_row: bool, is_exact: bool) -> None:
    """Odd columns too."""
    kernel = AddLoraConfig(by_row=by_row)
    for tokens, n, k, rank, parts in ((7, 6, 129, 16, 1), (1, 131, 7, 8, 1), (9, 262, 300, 64, 2)):
        sizes = samples.Sizes(tokens=tokens, n=n, k=k, rank=rank, parts=parts)
        case = samples.make(kernel, sizes, is_exact=is_exact, seed=n)
        jitgen.add_lora(**case.arguments)

        assert not case.wrong(), sizes


@pytest.mark.parametrize("config", KERNELS, ids=lambda config: config.to_name())
@pytest.mark.sampled(4)
def test_emulated(config: AddLoraConfig) -> None:
    """On sm_90a: rows of several adapters, and several of one."""
    for is_exact, sizes in (
        (True, samples.Sizes(tokens=6, n=32, k=2056, rank=8, parts=2)),
        (False, samples.Sizes(tokens=2, n=80, k=64, rank=32)),
    ):
        case = samples.make(config, sizes, is_exact=is_exact)
        settled = config.settled
        report = jitgen.emulate(on_gpu(config), *case.tensors, 1, num_sms=1, settled=settled)

        assert not [*report.findings]
        assert not case.wrong(), sizes


def test_emulated_in_place() -> None:
    """Rows without an adapter are neither read nor written then."""
    config = KERNELS[1]
    case = samples.make(config, samples.Sizes(tokens=6, n=48, k=72, rank=8), is_exact=True)
    y, *others, _, first = case.tensors
    report = jitgen.emulate(on_gpu(config), y, *others, y, first, 1, num_sms=1)

    assert not [*report.findings]
    assert torch.equal(y, case.outputs[0].expected)


@pytest.mark.nightly
def test_every_kernel_of_a_target_gives_the_same_bits() -> None:
    """The bits of a row do not depend on the rows that are computed with it."""
    found = []
    for config in (KERNELS[1], KERNELS[2]):
        case = samples.make(config, samples.Sizes(tokens=3, n=32, k=2056, rank=8), is_exact=False)
        y, x, a, b, *others, permutation, out, first = case.tensors
        jitgen.emulate(jitgen.get_kernel(config, Arch.SM_90A), *case.tensors, num_sms=1)
        found.append(out.clone())
        alone = permutation.where(torch.arange(len(permutation)) == 1, -1)
        given = (y, x, a, b, *others, alone, out.zero_(), first)
        jitgen.emulate(jitgen.get_kernel(config, Arch.SM_90A), *given, num_sms=1)
        assert torch.equal(out[1], found[-1][1])
        assert not out[2:].any()

    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": torch.zeros(6, 24)}, "y: must be bfloat16"),
        ({"x": torch.zeros(4, 40).bfloat16()}, "x: must have shape .*a row for each token"),
        ({"by_row": True}, "x: must have shape .*a row for each of y's"),
        ({"by_row": 1}, "by_row: must be True or False"),
        ({"a": torch.zeros(2, 2, 8, 48).bfloat16()}, "a: must have shape .*K columns, as x has"),
        ({"a": torch.zeros(2, 2, 24, 40).bfloat16()}, "a: must have 8 rows, .* or 16, of gates"),
        ({"b": torch.zeros(2, 3, 24, 8).bfloat16()}, "b: must have shape .*experts of a"),
        ({"b": torch.zeros(2, 2, 24, 4).bfloat16()}, "b: must have a rank of 8, 16, 32, 64"),
        ({"b": torch.zeros(2, 2, 48, 8)[:, :, ::2].bfloat16()}, None),
        ({"scales": torch.zeros(3)}, "scales: must have shape .*one for each adapter"),
        ({"adapter_ids": int32(0, 1)}, "adapter_ids: must have shape .*one for each token"),
        ({"topk_ids": torch.zeros(3, 2)}, "topk_ids: must be int32"),
        ({"permutation": int32(0, 1)}, "permutation: must have shape .*one for each row of y"),
        ({"first_expert": -1}, "first_expert: must be an integer of at least 0"),
        ({"out": torch.zeros(5, 24).bfloat16()}, "out: must have shape .*as y has"),
        ({"scales": torch.zeros(2).requires_grad_()}, "scales: must not require a gradient"),
    ],
    ids=str,
)
def test_refusals(change: dict[str, Any], words: str | None) -> None:
    if words is None:
        change = {"b": torch.zeros(2, 2, 48, 8).bfloat16()[:, :, ::2]}
        words = "b: must have contiguous matrices"
    for _ in ("fresh", "remembered"):
        with pytest.raises(InputError, match=words):
            jitgen.add_lora(**given() | change)


def test_an_odd_number_of_columns_has_no_two_parts() -> None:
    changed = {
        "y": torch.zeros(6, 23).bfloat16(),
        "a": torch.zeros(2, 2, 16, 40).bfloat16(),
        "b": torch.zeros(2, 2, 23, 8).bfloat16(),
    }
    with pytest.raises(InputError, match="a: must have 8 rows where y has 23 columns"):
        jitgen.add_lora(**given() | changed)


class TestProblems:
    def test_few_tokens_have_large_ctas(self) -> None:
        chosen = {
            m: jitgen.select(
                AddLoraProblem(m=m, n=4096, k=7168, rank=16, adapters=8, experts=256), "sm_90a"
            ).config.tiling
            for m in (1, 64, 4096)
        }

        assert chosen == {1: Tiling(threads=512, ctas_per_sm=1), 64: Tiling(), 4096: Tiling()}

    @pytest.mark.parametrize(
        ("sizes", "words"),
        [
            ({"k": 12}, "must have K a multiple of 8"),
            ({"n": 12}, "must have N a multiple of 8"),
            ({"n": 24, "parts": 2}, "must have N a multiple of 16"),
        ],
    )
    def test_sizes_that_no_kernel_serves(self, sizes: dict[str, int], words: str) -> None:
        problem = AddLoraProblem(**{"m": 1, "n": 16, "k": 8, "rank": 16} | sizes)
        with pytest.raises(jitgen.errors.UnsupportedConfig, match=words):
            jitgen.select(problem, "sm_90a")

    def test_ranks(self) -> None:
        with pytest.raises(ConfigError, match="rank must be one of 8, 16, 32, 64"):
            AddLoraProblem(m=1, n=8, k=8, rank=24)


@pytest.mark.nightly
@every_way
def test_no_kernel_spills(by_row: bool) -> None:
    every = (
        AddLoraConfig(by_row=by_row, tiling=Tiling(threads=threads, ctas_per_sm=ctas))
        for threads in (128, 256, 512)
        for ctas in (3, 2, 1)
    )
    for config in (each for each in every if check(each, "sm_90a")):
        made = compiler.compile_source(render(config, Arch.SM_90A))
        found = inspect.resources(made.files[made.library])
        assert not found.stack_bytes, config.to_name()
        assert not found.spill_instructions, config.to_name()
