# SPDX-License-Identifier: Apache-2.0
"""
Python calls with one wrong argument each. The documents were their only source, not the code.

Each raises an error of jitgen before anything is done, which names the argument and what it may be.
Each used to be accepted, to raise an error of Python or torch, or to raise one about something
else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import jitgen
from jitgen import plans
from jitgen.errors import JitgenError
from jitgen.parallel import ExpertMap, balance, connect, share
from jitgen.verify import verify_file

Call = Callable[[], Any]
X = torch.randn(8, 256).bfloat16()
W13 = torch.randn(4, 256, 256).bfloat16()
W2 = torch.randn(4, 256, 128).bfloat16()
OFFS = torch.tensor([2, 4, 6, 8], dtype=torch.int32)
IDS = torch.zeros(8, 2, dtype=torch.int32)
PLACE = {"hidden": 256, "intermediate": 128, "top_k": 2, "max_tokens": 8}
PAIRS = torch.zeros(16, dtype=torch.int32)
KIND: Any = "bf16"
NO: Any = 5
YES: Any = "yes"


def layer() -> jitgen.MoELayer:
    config = jitgen.MoEConfig(hidden=256, intermediate=128, experts=4, top_k=2)
    return jitgen.MoELayer(config, jitgen.ExpertWeights(w13=W13, w2=W2))


def packed() -> jitgen.quantize.PrepackedWeights:
    return jitgen.quantize.prepack_mxfp4_from(torch.randn(1, 128, 128))


CALLS: dict[str, Call] = {
    "out_dtype: must be a torch.dtype, or None (got 'bf16')": lambda: jitgen.grouped_gemm(
        X, W13, offs=OFFS, out_dtype=KIND
    ),
    "global_scale: belongs to tensor: leave it out with block128": lambda: (
        jitgen.activation_quantize(X, offs=OFFS, global_scale=torch.ones(1))
    ),
    "global_scale: is required for nvfp4 (got None)": lambda: jitgen.permute_quantize(
        X, PAIRS, top_k=2, offs=OFFS, format="nvfp4"
    ),
    "global_scale: must be a float32 tensor (got float)": lambda: jitgen.quantize.nvfp4(
        X,
        global_scale=2.0,  # type: ignore[arg-type]
    ),
    "local_experts: is required with first_expert 4 (got None)": lambda: jitgen.route(
        torch.randn(8, 16), top_k=2, first_expert=4
    ),
    "must end at the last of 16 experts, or before (got 4 from 14 on)": lambda: jitgen.route(
        torch.randn(8, 16), top_k=2, first_expert=14, local_experts=4
    ),
    "topk_ids: must be int32 or int64 (got torch.float32)": lambda: jitgen.sort_pairs(
        IDS.float(), experts=4
    ),
    "experts: must be at least 4, of the layer: the weights have 4": lambda: jitgen.moe(
        X, W13, W2, torch.ones(8, 2), IDS, experts=2
    ),
    "w2_a: is required with w2_b (got None)": lambda: jitgen.ExpertLora(
        w2_b=torch.randn(1, 4, 256, 8).bfloat16()
    ),
    "max_tokens: must be an integer of at least 1 (got 0)": lambda: jitgen.Workspace(
        **{**PLACE, "max_tokens": 0}, a_dtype=torch.bfloat16, device="cpu"
    ),
    "a_dtype: must be a torch.dtype (got 'bf16')": lambda: jitgen.Workspace(
        **PLACE, a_dtype=KIND, device="cpu"
    ),
    "masked: must be an integer of at least 0 (got -1)": lambda: jitgen.Workspace.of(
        layer().config, layer().weights, 8, masked=-1
    ),
    "power_of_two: must be True or False (got 'yes')": lambda: jitgen.quantize.per_row(
        X, power_of_two=YES
    ),
    "num_rows: must be at least 0 (got -1)": lambda: jitgen.quantize.from_atoms(
        torch.zeros(1, 1, 512, dtype=torch.uint8), -1, 4
    ),
    "counts: must have a number for each expert (got none)": lambda: balance([], 2),
    "counts: must have 1 dimension, (E,) (got (2, 4))": lambda: balance(torch.zeros(2, 4), 2),
    "counts: must be numbers of tokens (got [1, 'x'])": lambda: balance([1, "x"], 2),  # type: ignore[list-item]
    "ranks: must be 1 to experts, 2 (got 2.0)": lambda: balance([1, 2], 2.0),  # type: ignore[arg-type]
    "rank: must be 0 to 1 (got 0.5)": lambda: share(4, 0.5, 2),  # type: ignore[arg-type]
    "placed: must be a tuple of integers (got (0, 1.0))": lambda: ExpertMap(
        experts=2,
        ranks=1,
        placed=(0, 1.0),  # type: ignore[arg-type]
    ),
    "experts: must be an integer of at least 1 (got '2')": lambda: ExpertMap(
        experts="2",  # type: ignore[arg-type]
        ranks=1,
        placed=(0, 1),
    ),
    "jobs must be None or an integer of at least 0 (got -1)": lambda: layer().prewarm(
        "cpu", 8, jobs=-1, dry_run=True
    ),
    "timeout_s must be None or seconds, from 0 to 1000000 (got -3)": lambda: jitgen.prewarm(
        [], arch="cpu", timeout_s=-3
    ),
    "on_progress must be a function (got int)": lambda: jitgen.prewarm([], on_progress=NO),
    "devices must be a list of names, such as ['H200'] (got 'H200')": lambda: jitgen.prewarm(
        "route", arch="sm_90a", devices="H200", dry_run=True
    ),
    "prewarm takes a plan, or several configs (got int)": lambda: jitgen.prewarm(NO),
    "patience_s must be seconds, more than 0": lambda: jitgen.warm_up("route", patience_s=-1),
    "a plan is a name or a path (got int)": lambda: plans.load(NO),
    "text takes a Plan, such as jitgen.plans.load gives (got 5)": lambda: plans.text(NO),
    "listener: must be a function (got int)": lambda: jitgen.on_event(NO),
    "registry: must be a CollectorRegistry, or None (got int)": lambda: jitgen.metrics.install(NO),
    "freeze takes the path of a lock (got 5)": lambda: jitgen.freeze(lock=NO),
    "kernel: must be a compiled kernel (got int)": lambda: jitgen.emulate(NO),
    "GroupedGemmConfig needs layout, tile": lambda: jitgen.GroupedGemmConfig.from_json({}),
    "Tile needs n, k": lambda: jitgen.Tile.from_json({"m": 16}),
    "groups: must be a slice, such as slice(0, 8) (got 0)": lambda: packed().part(NO - 5),
    "dtype: must be a torch.dtype (got 'bf16')": lambda: packed().weights(KIND),
    "path: /none/x cannot be written: ": lambda: jitgen.quantize.save_prepacked(
        {"a": packed()}, "/none/x"
    ),
    "from_recording takes a Recording (got int)": lambda: plans.from_recording(NO),
    "there is no file none.py": lambda: verify_file("none.py", "sm_90a"),
    "config: the given config must say norm_topk_prob, True or False (got nothing)": lambda: (
        jitgen.RouterConfig.from_config({"model_type": "qwen3_moe", "num_experts": 8})
    ),
}


@pytest.mark.usefixtures("cache_root")
@pytest.mark.parametrize("complaint", CALLS)
def test_it_is_told(complaint: str) -> None:
    with pytest.raises(JitgenError) as told:
        CALLS[complaint]()

    assert complaint in str(told.value)
    assert "\n" not in str(told.value)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Any]:
    """A group of torch.distributed with this process alone."""
    store = dist.FileStore(str(tmp_path / "meeting"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"device": "gpu"}, "device: must be one that torch has here, such as cpu or cuda:0"),
        ({"limit_s": "30"}, "limit_s: must be more than 0 seconds, less than 1e6 (got '30')"),
        ({"hidden": 256.0}, "hidden: must be a multiple of 4 (got 256.0)"),
        ({"top_k": 2.0}, "top_k: must be 1 to 32 (got 2.0)"),
    ],
)
def test_ranks_are_connected_with_what_makes_sense(
    alone: Any, options: dict[str, Any], complaint: str
) -> None:
    usual: dict[str, Any] = {"hidden": 256, "top_k": 2, "max_tokens": 8, "device": "cpu"}
    with pytest.raises(JitgenError) as told:
        connect(alone, **{**usual, **options})

    assert complaint in str(told.value)


def test_a_layer_of_ranks_takes_no_adapters(alone: Any) -> None:
    """It was made, and refused its first call."""
    lora = jitgen.ExpertLora(
        w2_a=torch.randn(1, 4, 8, 128).bfloat16(), w2_b=torch.randn(1, 4, 256, 8).bfloat16()
    )
    with pytest.raises(JitgenError, match="lora: must be None with a group"):
        jitgen.MoELayer(layer().config, layer().weights, max_tokens=8, group=alone, lora=lora)


@pytest.mark.usefixtures("cache_root")
@pytest.mark.parametrize("name", ["arch", "device"])
def test_a_setting_of_the_program_is_not_told_as_a_variable(name: str) -> None:
    with (
        jitgen.settings.scope(**{name: "sm_42"}),
        pytest.raises(JitgenError, match=f"^settings.{name} is not allowed: "),
    ):
        jitgen.grouped_gemm(X, W13, offs=OFFS)
