# SPDX-License-Identifier: Apache-2.0
"""Processes that share a layer by what jitgen hangs into vLLM, whose modules are stand-ins."""

from __future__ import annotations

import importlib
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import jitgen
from jitgen.integrations import wires
from jitgen.parallel import share
from tests.moe_cases import Case, make
from tests.ranks import given, part_of
from tests.vllm_modules import stand_in

PACKAGE = "vllm.model_executor.layers.fused_moe"


class Backend(Enum):
    TRITON = 1


class Modular:
    """Stand-in for the base class in vLLM, of which jitgen's class needs nothing."""


class NoOP:
    """Stand-in for vLLM's class that experts return if they add up a token's places themselves."""


def _coordinator() -> Any:
    """Return what vLLM knows of the ranks; a group that is kept would outlive its threads."""
    return SimpleNamespace(device_group=dist.group.WORLD, device=torch.device("cpu"))


def theirs(
    moe: Any,
    quant_config: Any,
    routing_tables: Any = None,
    allow_new_interface: bool = False,
    use_monolithic: bool = False,
) -> str:
    """Return how vLLM's own function answers."""
    return "theirs"


def work(rank: int, ranks: int) -> None:
    """Let tokens travel in vLLM's order of calls, few by windows and more by collectives."""
    case = make("bf16", tokens=1)
    context = SimpleNamespace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_PLUGINS", "jitgen,jitgen-ranks")
        format_of = SimpleNamespace(Standard="standard")
        stand_in(
            patch,
            f"{PACKAGE}.modular_kernel",
            FusedMoEPrepareAndFinalizeModular=Modular,
            FusedMoEActivationFormat=format_of,
        )
        stand_in(patch, f"{PACKAGE}.topk_weight_and_reduce", TopKWeightAndReduceNoOP=NoOP)
        stand_in(patch, "vllm.distributed", get_ep_group=_coordinator)
        stand_in(patch, "vllm.forward_context", get_forward_context=lambda: context)
        utils = stand_in(patch, f"{PACKAGE}.all2all_utils", maybe_make_prepare_finalize=theirs)
        of_fp8 = {
            "backend_to_kernel_cls": lambda _: [],
            "_get_priority_backends": lambda *_: [],
            "maybe_make_prepare_finalize": theirs,
        }
        fp8 = stand_in(patch, f"{PACKAGE}.oracle.fp8", **of_fp8)
        stand_in(patch, f"{PACKAGE}.oracle.unquantized", backend_to_kernel_cls=lambda _: [])
        plugin = importlib.import_module("jitgen.integrations.vllm")
        for _ in range(2):  # again is as well
            plugin.register()
        ours = importlib.import_module("jitgen.integrations.vllm_ranks")
        patch.setattr(wires, "FEW_TOKENS", 3)
        patch.setattr(wires, "_wires", {})
        quant = SimpleNamespace(quant_dtype=None)
        _check_choice(utils.maybe_make_prepare_finalize, case, ranks)
        for make_one in (utils.maybe_make_prepare_finalize, fp8.maybe_make_prepare_finalize):
            found = make_one(_moe(case, ranks), quant, None, True)
            assert isinstance(found, ours.JitgenRanks)
        assert len(wires._wires) == 1
        assert (found.num_dispatchers(), found.output_is_reduced()) == (ranks, True)
        _check_results(found, case, rank, ranks, context)
        x, weights, ids, *_ = given(case, rank, 1, 0)
        fp8_tokens = SimpleNamespace(quant_dtype=torch.float8_e4m3fn)
        with pytest.raises(ValueError, match="have to quantise them"):
            found.prepare(x, weights, ids, 6, None, False, fp8_tokens, False)
        with pytest.raises(ValueError, match="add up a token's places"):
            found.finalize(x, x, weights, ids, False, object())


def _moe(case: Case, ranks: int, *, gathers: bool = True, **parallel: Any) -> Any:
    """Return what vLLM says of a layer."""
    usual = {"ep_size": ranks, "dp_size": ranks, "is_sequence_parallel": False}
    return SimpleNamespace(
        moe_parallel_config=SimpleNamespace(use_all2all_kernels=True, **usual | parallel),
        use_ag_rs_all2all_kernels=gathers,
        in_dtype=torch.bfloat16,
        hidden_dim=case.config.hidden,
        experts_per_token=case.config.top_k,
    )


def _check_choice(make_one: Any, case: Case, ranks: int) -> None:
    """What jitgen does not do stays vLLM's."""
    for moe, more in (
        (_moe(case, ranks), {}),
        (_moe(case, ranks), {"allow_new_interface": True, "use_monolithic": True}),
        (_moe(case, ranks, gathers=False), {"allow_new_interface": True}),
        (_moe(case, ranks, is_sequence_parallel=True), {"allow_new_interface": True}),
        (_moe(case, ranks, dp_size=1), {"allow_new_interface": True}),
    ):
        assert make_one(moe, None, **more) == "theirs"


def _check_results(found: Any, case: Case, rank: int, ranks: int, context: Any) -> None:
    """Compare with one process that has all experts."""
    first, count = share(case.config.experts, rank, ranks)
    weights_here = part_of(case, rank, ranks)
    whole = jitgen.MoELayer(case.config, case.weights)
    experts = {"experts": case.config.experts, "first_expert": first}
    for number, counts in enumerate(((2, 3), (0, 1), (7, 5))):
        x, weights, ids, *_ = given(case, rank, counts[rank], number)
        context.dp_metadata = SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor(counts))
        of_layer = (case.config.experts, None, False, SimpleNamespace(quant_dtype=None), True)
        every, scales, _, all_ids, all_weights = found.prepare(x, weights, ids.long(), *of_layer)
        assert scales is None
        y = jitgen.moe(every, weights_here.w13, weights_here.w2, all_weights, all_ids, **experts)
        out = torch.empty_like(x)
        found.finalize(out, y, all_weights, all_ids, False, NoOP())
        wanted = whole(x, weights, ids).float()
        assert weights_here.groups == count
        assert (out.float() - wanted).norm() <= 4e-3 * wanted.norm()
