# SPDX-License-Identifier: Apache-2.0
"""
Kernels that are called directly: every operation's look at what they are called with, on every
target, with every argument right and then wrong.

Nothing is launched here: sizes that a kernel trusts its caller with would end the process.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from jitgen.config import Arch, Config
from jitgen.config.operation import loaded, operation
from jitgen.config.plugins import OPERATIONS
from jitgen.errors import InputError
from jitgen.runtime.devices import Emulated
from jitgen.runtime.session import Session, current
from tests import pinned
from tests.cases import SIZES

OTHERS = (
    "activation_backward_ragged_swiglu_oai_cpu",
    "activation_backward_ragged_swiglu_sm_90a",
    "add_lora_bf16_cpu",
    "add_lora_bf16_byrow_sm_90a",
    "route_given_e32_cpu",
    "route_given_e128_t512_c2_spread_sm_90a",
    "permute_quantize_ragged_none_gather_cpu",
    "permute_quantize_ragged_tensor_scatter_sm_90a",
    "permute_quantize_masked_mxfp4_gather_floor_sm_90a",
    "permute_quantize_masked_nvfp4_gather_sm_100a",
    "dispatch_bf16_row_cpu",
    "dispatch_bf16_block128_sm_90a",
    "permute_quantize_ragged_row_copy_cpu",
    "permute_quantize_ragged_block128_copy_v16_sm_90a",
    "activation_quantize_ragged_none_swiglu_cpu",
    "activation_quantize_ragged_tensor_swiglu_c6_sm_90a",
    "grouped_gemm_ragged_e4m3_e4m3_tensor_bf16_t64x128x128_c1x1_acc1_sm_90a",
)
FINE = {
    ("activation_backward", 3): {"more of 0", "one less of 0"},  # groups, whatever ragged rows do
    ("activation_backward", 7): {"huge"},  # limit
    ("activation_backward", 8): {"negative", "huge"},  # alpha
    ("add_lora", 6): {"more of 1", "one less of 1"},  # experts of a token, which pairs name
    ("combine", 0): {"nothing", "more of 0", "one less of 0"},  # rows, of which inverse names some
    ("combine_ranks", 0): {"nothing", "more of 0", "one less of 0"},  # likewise
    ("combine_ranks", 3): {"more of 1"},  # places of an inbox
    ("combine_ranks", 4): {"int64"},  # addresses, which are taken on trust
    ("dispatch", 3): {"more of 1"},
    ("dispatch", 4): {"int64"},
    ("grouped_gemm", 2): {"more of 0", "more of 1"},  # blocks of atoms more than are needed
    ("moe_decode", 7): {"int64", "more of 0", "more of 1"},  # what CTAs exchange words in
    ("moe_decode", 8): {"int64"},  # which it is
    ("moe_decode", 10): {"huge"},  # an expert's number, as large as there are
    ("permute_quantize", 0): {"more of 0", "one less of 0"},  # tokens, of which permutation does
    # groups, whatever ragged rows do; places of a token
    ("permute_quantize", 2): {"more of 0", "one less of 0", "one less of 1"},
    ("permute_quantize", 4): {"more of 0", "more of 1", "one less of 0"},  # atoms; groups to sort
    ("route", 1): {"one less of 0"},  # local experts
    ("route", 3): {"one less of 0"},
    ("route", 4): {"one less of 0"},
    ("route", 9): {"negative", "huge"},  # what weights are multiplied with
    ("route", 10): {"negative", "huge"},
    ("route", 11): {"negative", "huge"},
    ("activation_quantize", 1): {"more of 0", "one less of 0"},  # groups, whatever ragged rows do
    ("activation_quantize", 4): {"huge"},  # limit
    ("activation_quantize", 5): {"negative", "huge"},  # alpha
}
"""What is as good as the right argument, by operation and place: public calls take it, too."""

NAMES = sorted({*pinned.NAMES, *OTHERS})


def of_name(name: str) -> tuple[Config, Arch]:
    return Config.parse(name)


def serving(arch: Arch, num_sms: int) -> Session:
    """Return a session that takes tensors of the host for those of a device of `arch`."""
    session = Session()
    if arch.is_gpu:
        session.emulated = Emulated(arch=arch, num_sms=num_sms, function=lambda _: None)
    return session


def right(name: str) -> tuple[Config, Arch, tuple[Any, ...]]:
    """Return a kernel and what it may be called with, as `jitgen verify` calls it."""
    config, arch = of_name(name)
    samples = importlib.import_module(operation(config.op).samples)
    sizes = samples.Sizes.parse(SIZES[config.op], config)
    tensors = samples.make(config, sizes, is_exact=True).tensors
    return config, arch, (*tensors, *([sizes.num_sms] if arch.is_gpu else []))


def judge(config: Config, arch: Arch, arguments: tuple[Any, ...]) -> None:
    token = current.set(serving(arch, 132))
    try:
        loaded(operation(config.op).direct)(config, arch, arguments)
    finally:
        current.reset(token)


def spoiled(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what may come in the place of `value`, and is wrong."""
    yield "None", None
    yield "text", "1"
    if not isinstance(value, Tensor):
        yield "tensor", torch.zeros(1)
        yield "negative", -1
        yield "huge", 2**40
        yield "nan", float("nan")
        return
    yield "number", 1
    yield "list", value.tolist() if value.numel() < 100 else []
    yield "float64", torch.zeros(value.shape, dtype=torch.float64)
    yield "int64", torch.zeros(value.shape, dtype=torch.int64)
    yield "more dimensions", value.unsqueeze(0)
    yield "no dimensions", value.new_zeros(())
    yield "nothing", value[:0]
    yield "elsewhere", value.to("meta")
    yield "sparse", torch.zeros(value.shape, dtype=torch.float32).to_sparse()
    yield "a gradient", torch.zeros(value.shape, dtype=torch.float32, requires_grad=True)
    for side, size in enumerate(value.shape):
        shape = [*value.shape]
        shape[side] = size + 512
        yield f"more of {side}", torch.zeros(shape, dtype=torch.uint8).to(value.dtype)
        if size > 1:
            yield f"one less of {side}", value.narrow(side, 0, size - 1)
    last = value.shape[-1] if value.dim() else 1
    if last > 1:
        wide = torch.zeros((*value.shape[:-1], 2 * last), dtype=torch.uint8).to(value.dtype)
        yield "every other of the last", wide[..., ::2]


@pytest.mark.parametrize("name", NAMES)
class TestEveryKernel:
    def test_right_arguments(self, name: str) -> None:
        judge(*right(name))

    def test_too_few_and_too_many(self, name: str) -> None:
        config, arch, arguments = right(name)
        for wrong in ((), arguments[:-1], (*arguments, 1)):
            with pytest.raises(InputError, match=f"arguments: must be {len(arguments)} for {name}"):
                judge(config, arch, wrong)

    @pytest.mark.sampled(3)
    def test_one_wrong_argument(self, name: str) -> None:
        """Each in turn is something else: refused in words, or as good."""
        config, arch, arguments = right(name)
        taken = []
        for place, value in enumerate(arguments):
            for kind, wrong in spoiled(value):
                spoilt = (*arguments[:place], wrong, *arguments[place + 1 :])
                try:
                    judge(config, arch, spoilt)
                except InputError:
                    continue
                taken.append((place, kind))

        assert [
            (place, kind) for place, kind in taken if kind not in FINE.get((config.op, place), ())
        ] == []

    def test_another_target(self, name: str) -> None:
        config, arch, arguments = right(name)
        other = Arch.parse("sm_90a" if arch is not Arch.parse("sm_90a") else "sm_100a")
        token = current.set(serving(other, 132))
        try:
            with pytest.raises(InputError, match=f"must be on {arch}, which {name} is for"):
                loaded(operation(config.op).direct)(config, arch, arguments)
        finally:
            current.reset(token)


def test_every_operation() -> None:
    """Each says what its kernels are called with, and some of its kernels are above."""
    ops = set(OPERATIONS.built_in())

    assert {of_name(name)[0].op for name in NAMES} == ops
    assert all(callable(loaded(operation(op).direct)) for op in ops)


class TestWhatOnlyConfigsSay:
    def test_groups(self) -> None:
        """The kernel has room for 32 experts, and wrote beyond it: the process ended."""
        config, arch, (ids, _, *rest) = right("route_given_e32_cpu")
        for groups in (33, 512):
            offs = torch.zeros(groups, dtype=torch.int32)
            with pytest.raises(InputError, match=r"must be for at least (64|512) experts"):
                judge(config, arch, (ids, offs, *rest))

    def test_experts(self) -> None:
        config, arch = of_name("route_softmax_bf16_e32_cpu")
        scores = torch.zeros(2, 64, dtype=torch.bfloat16)
        pairs = torch.zeros(2, 2, dtype=torch.int32)
        weights, offs = torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32)
        order = (offs, torch.zeros(4, dtype=torch.int32), pairs.clone())
        with pytest.raises(InputError, match="must be for at least 64 experts"):
            judge(config, arch, (scores, weights, pairs, *order, 1, 1, 1, 1.0, 0))

    @pytest.mark.parametrize("count", [0, -1, 133, 2**31, "1", None, 1.0, True])
    def test_number_of_ctas(self, count: Any) -> None:
        config, arch, arguments = right("combine_bf16_shared_l8_c6_sm_90a")
        with pytest.raises(InputError, match="num_ctas: must be from 1 to the 132 SMs"):
            judge(config, arch, (*arguments[:-1], count))

    def test_no_rows(self) -> None:
        config, arch = of_name("route_given_e32_cpu")
        none = torch.zeros(0, 2, dtype=torch.int32)
        sides = (torch.zeros(4, dtype=torch.int32), torch.zeros(0, dtype=torch.int32))
        with pytest.raises(InputError, match="nothing is launched for none"):
            judge(config, arch, (none, *sides, none.clone(), 0))

    def test_what_torchs_dispatcher_would_do(self) -> None:
        """The version of a result goes up; lazy signs, tangents and shared memory are refused."""
        config, arch, given = right("combine_bf16_shared_l8_c6_sm_90a")
        y, *between, shared, out, count = given
        before = out._version
        judge(config, arch, given)
        assert out._version > before
        judge(config, arch, (y, *between, out, out, count))  # shared, read before it is written

        with forward_ad.dual_level():
            dual = forward_ad.make_dual(y, torch.ones_like(y))
            with pytest.raises(InputError, match="forward-mode derivative"):
                judge(config, arch, (dual, *between, shared, out, count))
        with pytest.raises(InputError, match="lazily negated"):
            judge(config, arch, (torch._neg_view(y), *between, shared, out, count))
        memory = torch.zeros(y.numel() + out.numel(), dtype=y.dtype)
        inside = memory[8 : 8 + out.numel()].view(out.shape)
        with pytest.raises(InputError, match="out: must not share memory with y"):
            judge(
                config, arch, (memory[: y.numel()].view(y.shape), *between, shared, inside, count)
            )

    def test_tracers_tensors(self) -> None:
        config, arch, arguments = right("combine_bf16_cpu")
        with torch._subclasses.FakeTensorMode():
            fake = tuple(torch.zeros(x.shape, dtype=x.dtype) for x in arguments)
            with pytest.raises(InputError, match="must not be a tracer's"):
                judge(config, arch, fake)
