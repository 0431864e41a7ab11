# SPDX-License-Identifier: Apache-2.0
"""Scales and biases of checkpoints: exactly the numbers that their types stand for, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from tests.checkpoint_cases import EXPERTS, TOP_K, deepseek_v3, gpt_oss

SCALE = "model.layers.7.mlp.experts.3.up_proj.weight_scale_inv"
WEIGHT = SCALE.removesuffix("_scale_inv")
UE8M0: dict[str, Any] = {
    "num_experts": EXPERTS,
    "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0"},
}
FLOAT: dict[str, Any] = {
    "num_experts": EXPERTS,
    "quantization_config": {"quant_method": "fp8", "scale_fmt": "float"},
}


def powers() -> tuple[str, dict[str, Tensor]]:
    """Return an FP8 layer whose scales are powers of two, as float32."""
    prefix, tensors, _ = deepseek_v3()
    exponents = torch.Generator().manual_seed(0)
    for name, each in tensors.items():
        if name.endswith("_scale_inv"):
            tensors[name] = 2.0 ** torch.randint(-9, -4, each.shape, generator=exponents)
    return prefix, tensors


def as_type(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the same layer with scales of another type; uint8 is UE8M0's bytes."""
    found = dict(tensors)
    for name, each in tensors.items():
        if name.endswith("_scale_inv"):
            in_bytes = each.to(torch.float8_e8m0fnu).view(torch.uint8)
            found[name] = in_bytes if dtype is torch.uint8 else each.to(dtype)
    return found


def load(tensors: dict[str, Tensor], prefix: str, config: Any = None) -> jitgen.MoELayer:
    return jitgen.MoELayer.from_checkpoint(tensors, prefix, top_k=TOP_K, config=config)


def refused(tensors: dict[str, Tensor], prefix: str, config: Any = None) -> str:
    with pytest.raises(InputError) as caught:
        load(tensors, prefix, config)
    return str(caught.value)


class TestTypes:
    @pytest.mark.parametrize("config", [None, UE8M0])
    @pytest.mark.parametrize(
        "dtype",
        [torch.uint8, torch.float8_e8m0fnu, torch.bfloat16, torch.float16, torch.float32],
    )
    def test_the_same_numbers_in_every_type(self, dtype: torch.dtype, config: Any) -> None:
        """UE8M0 that was stored as uint8 became 118.0 and more: results 10**12 times too large."""
        prefix, tensors = powers()
        expected, found = load(tensors, prefix), load(as_type(tensors, dtype), prefix, config)

        for name in ("w13_scale", "w2_scale"):
            assert torch.equal(found.state_dict()[name], expected.state_dict()[name])

    @pytest.mark.parametrize(
        "dtype",
        [
            *(torch.int8, torch.int16, torch.int32, torch.int64, torch.float64, torch.bool),
            *(torch.float8_e4m3fn, torch.float8_e5m2),
        ],
    )
    def test_others_are_refused(self, dtype: torch.dtype) -> None:
        """Each of them was cast to float32, whatever it may have stood for."""
        prefix, tensors = powers()
        tensors[SCALE] = tensors[SCALE].to(dtype)
        text = refused(tensors, prefix)

        assert SCALE in text
        assert str(dtype) in text

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
    def test_bytes_where_the_config_says_float(self, dtype: torch.dtype) -> None:
        prefix, tensors = powers()
        text = refused(as_type(tensors, dtype), prefix, FLOAT)

        assert "weight_scale_inv must be" in text
        assert "says that scales are float" in text

    def test_the_ends_of_ue8m0(self) -> None:
        """The byte 0 is 2**-127, which float32 holds as a subnormal number, and no zero."""
        prefix, tensors = powers()
        stored = as_type(tensors, torch.uint8)
        stored[SCALE] = torch.tensor([[0, 254]], dtype=torch.uint8)
        found = load(stored, prefix).state_dict()["w13_scale"][3, 1]

        assert found.tolist() == [2.0**-127, 2.0**127]


class TestValues:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (float("nan"), "no NaN and no infinity"),
            (float("inf"), "no NaN and no infinity"),
            (-float("inf"), "no NaN and no infinity"),
            (-0.5, "no scale below zero"),
            (0.0, f"no zero over values of {WEIGHT.partition('mlp.')[2]}"),
        ],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_what_is_no_scale(self, value: float, text: str, dtype: torch.dtype) -> None:
        """A layer with a NaN among its scales was loaded without a word."""
        prefix, tensors = powers()
        tensors[SCALE] = tensors[SCALE].to(dtype)
        tensors[SCALE][0, 1] = value
        message = refused(tensors, prefix)

        assert f"{SCALE} must have {text}" in message
        assert "(got 1, the first at (0, 1))" in message

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
    def test_the_byte_of_a_nan(self, dtype: torch.dtype) -> None:
        prefix, tensors = powers()
        stored = as_type(tensors, torch.uint8)
        stored[SCALE][0, 1] = 255
        stored = {
            name: each.view(dtype) if name.endswith("_scale_inv") else each
            for name, each in stored.items()
        }

        assert f"{SCALE} must have no NaN, the byte 255" in refused(stored, prefix)

    @pytest.mark.parametrize("zero", [0.0, -0.0])
    def test_a_zero_over_zeros_is_a_scale(self, zero: float) -> None:
        """A block without values has any scale; also a block of negative zeros."""
        prefix, tensors = powers()
        tensors[WEIGHT] = tensors[WEIGHT].clone()
        tensors[WEIGHT][:, 128:] = zero
        tensors[SCALE][0, 1] = 0.0
        assert load(tensors, prefix).config.experts == EXPERTS
        tensors[WEIGHT][127, 255] = 0.5

        assert SCALE in refused(tensors, prefix)

    def test_scales_of_other_blocks(self) -> None:
        """Of 64 x 64, of rows, or one of all: the message names the tensor."""
        prefix, tensors = powers()
        rows, columns = tensors[WEIGHT].shape
        for shape in ((rows // 64, columns // 64), (rows, 1), (1, 1), (1,), ()):
            text = refused({**tensors, SCALE: torch.ones(shape)}, prefix)
            assert f"{SCALE} must" in text
            assert str(shape) in text


class TestGptOss:
    @pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
    def test_scales_are_bytes_without_a_nan(self, name: str) -> None:
        prefix, tensors, _ = gpt_oss()
        full = f"{prefix}.experts.{name}_scales"
        as_e8m0 = {**tensors, full: tensors[full].view(torch.float8_e8m0fnu)}
        assert torch.equal(
            load(as_e8m0, prefix).state_dict()["w13"], load(tensors, prefix).state_dict()["w13"]
        )
        assert f"{full} must be" in refused({**tensors, full: tensors[full].int()}, prefix)
        tensors[full][4, 7, 1] = 255

        assert f"{full} must have no NaN, the byte 255 (got 1, the first at (4, 7, 1))" in refused(
            tensors, prefix
        )

    @pytest.mark.parametrize("name", ["gate_up_proj", "down_proj"])
    def test_biases_are_numbers(self, name: str) -> None:
        """Biases of any type were cast, too."""
        prefix, tensors, _ = gpt_oss()
        full = f"{prefix}.experts.{name}_bias"
        wrong = tensors[full].clone()
        wrong[2, 3] = float("nan")

        assert f"{full} must be" in refused({**tensors, full: tensors[full].to(torch.int8)}, prefix)
        assert f"{full} must have no NaN" in refused({**tensors, full: wrong}, prefix)

    def test_blocks_are_bytes(self) -> None:
        prefix, tensors, _ = gpt_oss()
        full = f"{prefix}.experts.gate_up_proj_blocks"

        assert f"{full} must be uint8" in refused({**tensors, full: tensors[full].int()}, prefix)
