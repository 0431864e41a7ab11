# SPDX-License-Identifier: Apache-2.0
"""What tensors, files and arguments of `from_checkpoint` may be, each mistake with one error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import jitgen
from jitgen.errors import InputError, ResourceError
from tests.checkpoint_cases import (
    EXPERTS,
    HIDDEN,
    INTERMEDIATE,
    MAKERS,
    TOP_K,
    deepseek_v3,
    gpt_oss,
    load,
    mixtral,
    qwen3_moe,
    refused,
    same,
)


class TestKindsOfValues:
    """A mapping with others raised IndexError, AttributeError or torch's own RuntimeError."""

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    @pytest.mark.parametrize("family", MAKERS)
    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda _: None, "NoneType"),
            (lambda _: 3.0, "float"),
            (lambda each: each.float().tolist(), "list"),
            (lambda each: each.float().numpy(), "ndarray"),
            (lambda each: each.to("meta"), "meta"),
            (lambda each: torch.nn.functional.pad(each.float(), (0, 1)).to_sparse(), "dense"),
            (lambda each: each.flatten()[0], "()"),
            (lambda each: each[:0], "(0, "),
            (lambda each: torch.ones_like(each, dtype=torch.bool), "bool"),
            (lambda each: each.float() * 1j, "complex64"),
            (lambda _: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "dense"),
        ],
    )
    def test_each_is_one_error_with_its_name(
        self, family: str, change: Callable[[Tensor], Any], text: str
    ) -> None:
        prefix, tensors, _ = MAKERS[family]()
        for name in tensors:
            if family != "gpt_oss" and ".experts.0." not in name:
                continue
            message = refused({**tensors, name: change(tensors[name])}, prefix)
            assert name in message
            assert text in message or "as many experts" in message

    def test_a_matrix_without_an_end(self) -> None:
        """One value, expanded to more than there is memory for."""
        prefix, tensors, _ = qwen3_moe()
        name = f"{prefix}.experts.0.gate_proj.weight"
        wrong = {**tensors, name: torch.empty(1).bfloat16().expand(2**40, 2**20)}
        assert f"{name} is too large" in refused(wrong, prefix)
        wrong[name] = torch.empty(1).bfloat16().expand(2**30, 2**20)

        with pytest.raises(ResourceError, match="gate_proj"):
            load(wrong, prefix)

    def test_names_that_are_no_text(self) -> None:
        prefix, tensors, _ = qwen3_moe()
        wrong: dict[Any, Tensor] = {**tensors, 3: torch.ones(3)}

        assert "text (got 3" in refused(wrong, prefix)

    def test_parameters_are_read_without_their_gradients(self) -> None:
        """The layer's buffers had a graph behind them, and could not be copied."""
        prefix, tensors, _ = qwen3_moe()
        trained: dict[str, Tensor] = {
            name: torch.nn.Parameter(each) for name, each in tensors.items()
        }
        found = load(trained, prefix)

        assert same(found, load(tensors, prefix))
        assert not any(each.requires_grad for each in found.buffers())

    def test_a_sign_that_torch_keeps_for_later(self) -> None:
        """Lazily negated views are tensors like others; their memory has the other sign."""
        prefix, tensors, _ = gpt_oss()
        lazy = {name: each.clone() for name, each in tensors.items()}
        for name, each in tensors.items():
            if name.endswith("_bias"):
                lazy[name] = torch._neg_view(-each.float())
        found = load(lazy, prefix)

        assert same(found, load(tensors, prefix))
        assert not any(each.is_neg() for each in found.buffers())

    @pytest.mark.parametrize("order", ["gates alone", "all turned", "downs alone"])
    def test_shapes_that_do_not_fit(self, order: str) -> None:
        prefix, tensors, _ = mixtral()
        wrong = {
            name: each.T.contiguous()
            if order == "all turned" or (".w2." in name) == (order == "downs alone")
            else each
            for name, each in tensors.items()
        }
        if order == "all turned":  # a layer with H and I exchanged: nothing tells
            assert load(wrong, prefix).config.hidden == INTERMEDIATE
            assert f"hidden_size = {HIDDEN}" in refused(
                wrong, prefix, config={"hidden_size": HIDDEN}
            )
        else:
            assert f"{prefix}.experts.0.w2.weight must have shape" in refused(wrong, prefix)

    def test_sizes_that_no_block_has(self) -> None:
        prefix, tensors, _ = gpt_oss()
        for side, names in (
            (1, ("gate_up_proj_blocks", "gate_up_proj_scales", "gate_up_proj_bias")),
            (1, ("down_proj_blocks",)),
            (2, ("gate_up_proj_blocks", "gate_up_proj_scales")),
            (3, ("down_proj_blocks",)),
        ):
            wrong = dict(tensors)
            for name in names:
                full = f"{prefix}.experts.{name}"
                wrong[full] = wrong[full].narrow(side, 0, wrong[full].shape[side] - 1)
            assert f"{prefix}.experts." in refused(wrong, prefix)


class TestArguments:
    @pytest.mark.parametrize(
        ("changes", "argument"),
        [
            ({"prefix": 3}, "prefix"),
            ({"prefix": "model.layers.7.mlp."}, "prefix"),
            ({"top_k": None}, "top_k"),
            ({"top_k": "2"}, "top_k"),
            ({"top_k": [2]}, "top_k"),
            ({"top_k": EXPERTS + 1}, "top_k"),
            ({"family": ["qwen3_moe"]}, "family"),
            ({"first_expert": "0"}, "first_expert"),
            ({"first_expert": None}, "first_expert"),
            ({"first_expert": -1}, "first_expert"),
            ({"local_experts": 0}, "local_experts"),
            ({"local_experts": 1.5}, "local_experts"),
            ({"device": 1.5}, "device"),
            ({"device": "nowhere"}, "device"),
            ({"config": 3}, "config"),
            ({"activation": "tanh"}, "activation"),
            ({"swiglu_limit": 7.0}, "swiglu_limit"),
            ({"interleaved": "yes"}, "interleaved"),
            ({"chunk_tokens": 0}, "chunk_tokens"),
            ({"min_latency": "yes"}, "min_latency"),
            ({"numerics": "exact"}, "numerics"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"workspace": 3}, "workspace"),
            ({"activation_format": "row"}, "activation_format"),
        ],
    )
    def test_one_error_names_the_argument(self, changes: dict[str, Any], argument: str) -> None:
        prefix, tensors, _ = qwen3_moe()
        named: dict[str, Any] = {"source": tensors, "prefix": prefix, "top_k": TOP_K, **changes}

        with pytest.raises(InputError) as caught:
            jitgen.MoELayer.from_checkpoint(**named)
        assert caught.value.argument == argument

    @pytest.mark.skipif(torch.cuda.is_available(), reason="needs a torch without a GPU")
    def test_a_device_that_is_not_here(self) -> None:
        """Torch raised an AssertionError of its own, after all weights had been looked for."""
        prefix, tensors, _ = qwen3_moe()

        assert "device" in refused(tensors, prefix, device="cuda")

    def test_a_layer_is_told_all_that_its_config_has(self) -> None:
        """`from_checkpoint` could not pass what `MoEConfig` takes."""
        prefix, tensors, _ = qwen3_moe()
        found = load(
            tensors,
            prefix,
            activation="swiglu_oai",
            interleaved=True,
            swiglu_limit=5.0,
            swiglu_alpha=1.5,
            chunk_tokens=64,
            min_latency=True,
            numerics="invariant",
        ).config

        assert found == jitgen.MoEConfig(
            hidden=HIDDEN,
            intermediate=INTERMEDIATE,
            experts=EXPERTS,
            top_k=TOP_K,
            activation="swiglu_oai",
            interleaved=True,
            swiglu_limit=5.0,
            swiglu_alpha=1.5,
            chunk_tokens=64,
            min_latency=True,
            numerics="invariant",
        )

    @pytest.mark.parametrize("family", MAKERS)
    def test_on_no_device(self, family: str) -> None:
        prefix, tensors, _ = MAKERS[family]()
        found = load(tensors, prefix, device="meta")

        assert all(each.is_meta for each in found.buffers())
        assert found.state_dict().keys() == load(tensors, prefix).state_dict().keys()

    def test_weights_of_other_types_are_rounded_once(self) -> None:
        prefix, tensors, _ = qwen3_moe()
        for dtype in (torch.float16, torch.float32):
            other = {name: each.mul(1.01).to(dtype) for name, each in tensors.items()}
            rounded = {name: each.bfloat16() for name, each in other.items()}
            assert same(load(other, prefix), load(rounded, prefix))
        mixed = dict(tensors)
        name = f"{prefix}.experts.3.down_proj.weight"
        mixed[name] = mixed[name].float()
        assert name in refused(mixed, prefix)


class TestFilesThatAreNone:
    @pytest.mark.parametrize("kind", ["folder", "pipe", "empty", "text"])
    def test_each_is_named(self, kind: str, tmp_path: Path) -> None:
        """A pipe waited for ever; a folder raised an OSError that named no file."""
        path = tmp_path / "model.safetensors"
        {
            "folder": path.mkdir,
            "pipe": lambda: os.mkfifo(path),
            "empty": path.touch,
            "text": lambda: path.write_text("nothing of the kind"),
        }[kind]()

        assert str(path) in refused(tmp_path, "m")

    def test_an_index_of_files_that_are_not_there(self, tmp_path: Path) -> None:
        prefix, tensors, _ = deepseek_v3()
        index = tmp_path / "model.safetensors.index.json"
        for file, error in (("absent.safetensors", OSError), ("..", InputError), ("", InputError)):
            index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, file)}))
            with pytest.raises(error, match=r"absent\.safetensors|no regular file"):
                load(tmp_path, prefix)
        save_file({"other": torch.ones(3)}, tmp_path / "here.safetensors")
        index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "here.safetensors")}))
        assert "here.safetensors" in refused(tmp_path, prefix)
        for text in ('{"weight_map": {}}', '{"weight_map": {"a": 3}}', "[]", "{", "\x00"):
            index.write_text(text)
            assert str(index) in refused(tmp_path, prefix)
