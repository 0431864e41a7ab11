# SPDX-License-Identifier: Apache-2.0
"""
Layers with packed weights in vLLM, with stand-ins for its modules: what chooses experts, converts
weights and makes kernels. `tests/service/test_vllm.py` does the same in a real vLLM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.formats import int4, nvfp4
from jitgen.integrations import vllm
from jitgen.layer import reference
from tests import needs
from tests.moe_cases import EXPERTS, GPT_OSS, HIDDEN, INTERMEDIATE, TOP_K, Case, _int4, make
from tests.vllm_modules import LAYERS, MOE, layer_of_vllm, loading, stand_in, vllm_modules


class Backend(Enum):
    CUTLASS = 1
    TRITON = 2


class AutoAWQConfig(SimpleNamespace):
    """Has the name by which vLLM's class is known."""


def _quant(**changes: Any) -> Any:
    """Return vLLM's config of INT4 weights."""
    return SimpleNamespace(**{"weight_bits": 4, "group_size": 32} | changes)


def theirs(arguments: str) -> Callable[..., str]:
    """Return a function of vLLM's with these arguments, of which those with "=" are optional."""

    def function(*_: Any, **__: Any) -> str:
        return "theirs"

    function.__signature__ = Signature(  # type: ignore[attr-defined]
        Parameter(
            name.strip().rstrip("="),
            Parameter.POSITIONAL_OR_KEYWORD,
            default=None if name.endswith("=") else Parameter.empty,
        )
        for name in arguments.split(",")
    )
    return function


FUNCTIONS = {
    "unquantized": {},
    "fp8": {
        "convert_to_fp8_moe_kernel_format": (
            "fp8_backend, layer, w13, w2, w13_scale, w2_scale, w13_input_scale, w2_input_scale"
        ),
    },
    "int_wna16": {
        "select_wna16_moe_backend": (
            "config, weight_key, quant_config, may_have_zp, may_have_bias, allow_tile_padding="
        ),
        "convert_to_wna16_moe_kernel_format": (
            "backend, layer, quant_config, input_dtype, w13, w2, w13_scale, w2_scale, "
            "w13_qzeros=, w2_qzeros=, w13_bias=, w2_bias="
        ),
        "make_wna16_moe_kernel": (
            "moe_quant_config, moe_config, experts_cls, backend=, routing_tables="
        ),
    },
    "nvfp4": {
        "select_nvfp4_moe_backend": "config, weight_key, activation_key",
        "convert_to_nvfp4_moe_kernel_format": (
            "nvfp4_backend, layer, w13, w13_scale, w13_scale_2, a13_scale, w2, w2_scale, "
            "w2_scale_2, a2_scale, is_act_and_mul, use_a16=, trtllm_hidden_alignment="
        ),
    },
    "mxfp8": {"select_mxfp8_moe_backend": "config"},
    "mxfp4": {
        "select_mxfp4_moe_backend": "config, activation_key=",
        "select_deepseek_v4_mxfp4_moe_backend": "config",
        **dict.fromkeys(
            (
                "convert_weight_to_mxfp4_moe_kernel_format",
                "convert_gpt_oss_weight_to_mxfp4_moe_kernel_format",
            ),
            "mxfp4_backend, layer, w13_weight, w2_weight, w13_weight_scale, w2_weight_scale, "
            "w13_bias=, w2_bias=, _cache_permute_indices=",
        ),
    },
}
"""Functions of vLLM 0.32's modules that choose experts, with their arguments."""


@pytest.fixture
def oracles(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return vLLM's modules that choose experts, after the plugin was asked."""
    vllm_modules(monkeypatch)
    found: dict[str, Any] = {
        module: stand_in(
            monkeypatch,
            f"{MOE}.oracle.{module}",
            backend_to_kernel_cls=lambda backend: [backend.name],
            **{name: theirs(arguments) for name, arguments in functions.items()},
        )
        for module, functions in FUNCTIONS.items()
    }
    found["fp8"]._get_priority_backends = lambda *_: list(Backend)
    found["fp8"].make_fp8_moe_kernel = lambda **asked: asked["experts_cls"](
        asked["moe_config"], asked["moe_quant_config"]
    )
    name = "select_wna16_moe_backend"  # which a module took before
    method = stand_in(
        monkeypatch, f"{LAYERS}.quantization.method", **{name: vars(found["int_wna16"])[name]}
    )
    monkeypatch.setenv("VLLM_PLUGINS", "jitgen")
    for _ in range(2):  # again is as well
        vllm.register()
    yield {**found, "method": method}
    for name in ("vllm_experts", "vllm_packed_experts"):
        sys.modules.pop(f"jitgen.integrations.{name}", None)


@dataclass(frozen=True)
class Packed:
    """
    A layer as a checkpoint has it.

    Attributes:
        case: The layer, with weights that jitgen prepacked itself.
        selection: Names of a module and a function that chooses experts, and its arguments.
        conversion: Likewise for the function that converts weights; without the backend.
        results: Numbers of the results that are weights and scales: w13, w2, theirs.
        kind: vLLM's word for the type of the weights.
    """

    case: Case
    selection: tuple[str, str, dict[str, Any]]
    conversion: tuple[str, str, dict[str, Any]]
    results: tuple[int, int, int, int]
    kind: str


def _weights(case: Case) -> tuple[tuple[str, jitgen.quantize.PrepackedWeights], ...]:
    return ("w13", case.weights.w13), ("w2", case.weights.w2)  # type: ignore[return-value]


def _of_int4(group: int, order: str) -> Packed:
    """Return INT4 weights as vLLM's method for `order` hands them over."""
    plain = make("bf16")
    made = {
        name: _int4(each.float(), group, "wide1")
        for name, each in (("w13", plain.weights.w13), ("w2", plain.weights.w2))
    }
    case = replace(plain, weights=jitgen.ExpertWeights(**made))
    asked: dict[str, Any] = {"layer": None, "input_dtype": None}
    for name, each in made.items():
        words, scale = each.unpack()
        scale = scale.bfloat16()
        if order == "AWQ":
            words, scale = _as_awq(int4.values_of(words)), scale.mT.contiguous()
        asked |= {name: words.view(torch.uint8) if order == "bytes" else words}
        asked |= {f"{name}_scale": scale}
    quant = (AutoAWQConfig if order == "AWQ" else SimpleNamespace)(**vars(_quant(group_size=group)))
    asked["quant_config"] = quant
    choice = {"weight_key": "int4", "quant_config": quant, "may_have_zp": False}
    return Packed(
        case=case,
        selection=("int_wna16", "select_wna16_moe_backend", {**choice, "may_have_bias": False}),
        conversion=("int_wna16", "convert_to_wna16_moe_kernel_format", asked),
        results=(0, 1, 2, 3),
        kind="int4",
    )


def _as_awq(values: Tensor) -> Tensor:
    """Return words along N, in AWQ's order, of INT4 values (G, N, K)."""
    codes = (values.mT.int() + 8).unflatten(-1, (-1, 8))[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    words = (codes.long() << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def _of_nvfp4(tokens: str | None) -> Packed:
    """Return NVFP4 weights, with a checkpoint's global scale of every expert."""
    case = make("nvfp4_wide1") if tokens is None else make("nvfp4_wide1", seed=1)
    asked: dict[str, Any] = dict.fromkeys(("layer", "a13_scale", "a2_scale"))
    made = {}
    for name, each in _weights(case):
        packed, scale = each.unpack()
        overall = nvfp4.global_scale_of(each.factor, each.layout)
        asked |= {name: packed, f"{name}_scale": scale, f"{name}_scale_2": overall}
        made[name] = jitgen.quantize.prepack_nvfp4(
            packed, scale, overall, layout="wide1" if tokens is None else "exact1"
        )
    return Packed(
        case=replace(case, weights=jitgen.ExpertWeights(**made)),
        selection=(
            "nvfp4",
            "select_nvfp4_moe_backend",
            {"weight_key": "Nvfp4Static", "activation_key": tokens},
        ),
        conversion=(
            "nvfp4",
            "convert_to_nvfp4_moe_kernel_format",
            {**asked, "is_act_and_mul": True, "use_a16": tokens is None},
        ),
        results=(0, 4, 1, 5),
        kind="nvfp4",
    )


def _of_mxfp8() -> Packed:
    case = make("mxfp8_exact1")
    asked: dict[str, Any] = dict.fromkeys(("layer", "w13_input_scale", "w2_input_scale"))
    for name, each in _weights(case):
        asked[name], asked[f"{name}_scale"] = each.unpack()
    return Packed(
        case=case,
        selection=("mxfp8", "select_mxfp8_moe_backend", {}),
        conversion=("fp8", "convert_to_fp8_moe_kernel_format", asked),
        results=(0, 1, 2, 3),
        kind="mxfp8",
    )


def _of_mxfp4() -> Packed:
    """Return MXFP4 weights with biases, which vLLM has in bfloat16."""
    found = make("wide1")
    names = ("w13_bias", "w2_bias")
    biases = {name: getattr(found.weights, name).bfloat16() for name in names}
    floats = {name: bias.float() for name, bias in biases.items()}
    case = replace(found, weights=replace(found.weights, **floats))
    asked: dict[str, Any] = {"layer": None, **biases}
    for name, each in _weights(case):
        asked[f"{name}_weight"], asked[f"{name}_weight_scale"] = each.unpack()
    return Packed(
        case=case,
        selection=("mxfp4", "select_mxfp4_moe_backend", {}),
        conversion=("mxfp4", "convert_gpt_oss_weight_to_mxfp4_moe_kernel_format", asked),
        results=(0, 1, 2, 3),
        kind="mxfp4",
    )


FORMS = {
    "int4_32": lambda: _of_int4(32, "words"),
    "int4_128, bytes": lambda: _of_int4(128, "bytes"),
    "int4_32, AWQ": lambda: _of_int4(32, "AWQ"),
    "nvfp4": lambda: _of_nvfp4("Nvfp4Dynamic"),
    "nvfp4, bfloat16 tokens": lambda: _of_nvfp4(None),
    "mxfp8": _of_mxfp8,
    "mxfp4": _of_mxfp4,
}
_AT_NIGHT = [pytest.param(each, marks=pytest.mark.nightly) for each in list(FORMS)[1:]]


def experts_of(packed: Packed, oracles: dict[str, Any], **layer: Any) -> tuple[Any, list[Tensor]]:
    """Let vLLM's functions choose experts, convert weights and make a kernel; return the latter."""
    moe = layer_of_vllm(has_bias=packed.case.weights.w13_bias is not None, **layer)
    module, name, asked = packed.selection
    backend, kind = getattr(oracles[module], name)(config=moe, **asked)
    module, name, asked = packed.conversion
    with loading():
        found = getattr(oracles[module], name)(backend, **asked)
    w13, w2, w13_scale, w2_scale = (found[number] for number in packed.results)
    group = getattr(asked.get("quant_config"), "group_size", None)
    biases = found[-2:] if packed.kind == "mxfp4" else (None, None)
    quant = SimpleNamespace(
        quant_dtype=None,
        weight_quant_dtype=packed.kind,
        block_shape=None if group is None else [0, group],
        **dict(zip(("w1_scale", "w2_scale"), (w13_scale, w2_scale), strict=True)),
        **dict(zip(("w1_bias", "w2_bias"), biases, strict=True)),
    )
    if packed.kind == "mxfp4":
        assert oracles["mxfp4"].backend_to_kernel_cls(backend) == [kind]
    make_one = oracles["int_wna16"].make_wna16_moe_kernel
    made = {"moe_quant_config": quant, "moe_config": moe, "experts_cls": kind}
    with loading():
        return make_one(**made, backend=backend), [w13, w2]


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
class TestPackedWeights:
    @pytest.mark.parametrize("form", [next(iter(FORMS)), *_AT_NIGHT])
    def test_a_layer_computes_what_its_checkpoint_says(
        self, form: str, oracles: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "vllm.jitgen")
        packed = FORMS[form]()
        case, is_oss = packed.case, packed.kind == "mxfp4"
        experts, (w1, w2) = experts_of(
            packed, oracles, activation="swigluoai" if is_oss else "silu"
        )
        out = torch.empty_like(case.x)
        experts.apply(
            *(out, case.x, w1, w2, case.topk_weights, case.topk_ids),
            expert_map=None,
            apply_router_weight_on_input=False,
            global_num_experts=EXPERTS,
        )

        assert is_oss == (case.config.gate.get("swiglu_limit") == GPT_OSS["swiglu_limit"])
        assert reference.relative_error(out, case.expected()) < case.tolerance
        assert torch.equal(out, jitgen.MoELayer(case.config, case.weights)(*case.given))
        sizes = EXPERTS, len(case.x), 2 * INTERMEDIATE, HIDDEN, TOP_K
        assert experts.moe_problem_size(case.x, w1, w2, case.topk_ids) == sizes
        (line,) = (each.getMessage() for each in caplog.records if each.name == "vllm.jitgen")
        words = packed.case.weights.w13.format  # type: ignore[union-attr]
        tokens = "bfloat16" if case.weights.activation_format == "none" else "block128"
        assert line.endswith(f"quantised: {words}, tokens {tokens}")


class TestSelection:
    def test_a_module_that_had_a_function_already_has_the_new_one(
        self, oracles: dict[str, Any]
    ) -> None:
        chosen = oracles["int_wna16"].select_wna16_moe_backend

        assert oracles["method"].select_wna16_moe_backend is chosen

    @pytest.mark.parametrize(
        ("layer", "asked", "why"),
        [
            ({"moe_backend": "marlin"}, {}, "INT4 weights: --moe-backend is marlin"),
            ({"enable_eplb": True}, {}, "INT4 weights: the load of experts is balanced"),
            ({"is_batched": True}, {}, "batched activation format"),
            ({"in_dtype": torch.float16}, {}, "tokens are torch.float16"),
            ({"activation": "mish"}, {}, "no mish"),
            ({}, {"may_have_zp": True}, "INT4 weights: there are zero points"),
            ({}, {"quant_config": _quant(weight_bits=8)}, "weights have 8 bits"),
            ({}, {"quant_config": _quant(group_size=64)}, "groups have 64 values"),
            ({}, {"quant_config": _quant(desc_act=True)}, "rows along K are reordered"),
            ({}, {"quant_config": SimpleNamespace(num_bits=4)}, "groups have None values"),
        ],
        ids=str,
    )
    def test_what_is_not_taken_stays_with_a_reason(
        self,
        layer: dict[str, Any],
        asked: dict[str, Any],
        why: str,
        oracles: dict[str, Any],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        usual = {"weight_key": "int4", "quant_config": _quant(), "may_have_zp": False}
        for _ in range(2):
            found = oracles["int_wna16"].select_wna16_moe_backend(
                config=layer_of_vllm(**layer), **usual | asked, may_have_bias=False
            )
            assert found == "theirs"

        (line,) = (each.getMessage() for each in caplog.records if each.name == "vllm.jitgen")
        assert line.startswith("jitgen does not compute layers of ")
        assert why in line

    @pytest.mark.parametrize(
        ("module", "function", "asked"),
        [
            ("nvfp4", "select_nvfp4_moe_backend", {"weight_key": "w", "activation_key": "other"}),
            ("mxfp4", "select_mxfp4_moe_backend", {"activation_key": "Fp8StaticTensorSym"}),
        ],
    )
    def test_tokens_quantised_otherwise_stay(
        self, module: str, function: str, asked: dict[str, Any], oracles: dict[str, Any]
    ) -> None:
        assert getattr(oracles[module], function)(layer_of_vllm(), **asked) == "theirs"

    def test_weights_of_their_experts_are_converted_by_them(self, oracles: dict[str, Any]) -> None:
        nothing = dict.fromkeys(("w13", "w2", "w13_scale", "w2_scale"))
        more = dict.fromkeys(("layer", "w13_input_scale", "w2_input_scale"))

        assert (
            oracles["fp8"].convert_to_fp8_moe_kernel_format("TRITON", **nothing, **more) == "theirs"
        )
        assert oracles["int_wna16"].make_wna16_moe_kernel(None, None, None) == "theirs"
        assert oracles["mxfp4"].backend_to_kernel_cls(Backend.CUTLASS) == ["CUTLASS"]

    @pytest.mark.parametrize(
        ("keys", "first"),
        [
            (("Fp8StaticChannelSym", "Fp8DynamicTokenSym"), "TRITON"),
            (("Fp8StaticTensorSym", "Fp8StaticTensorSym"), "CUTLASS"),
        ],
    )
    def test_fp8_layers_come_to_the_backend_that_keeps_their_weights(
        self, keys: tuple[str, str], first: str, oracles: dict[str, Any]
    ) -> None:
        """With scales of rows, vLLM tried its CUTLASS experts before the place that ours are in."""
        layer = layer_of_vllm(in_dtype=torch.bfloat16)
        importlib.import_module("jitgen.integrations.vllm_experts")
        found = oracles["fp8"]._get_priority_backends(layer, *keys)

        assert found[0].name == first
        assert set(found) == set(Backend)

    def test_a_vllm_without_a_function_is_an_error_that_names_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("unquantized", "fp8"):
            stand_in(monkeypatch, f"{MOE}.oracle.{name}", backend_to_kernel_cls=lambda _: [])
        monkeypatch.setenv("VLLM_PLUGINS", "jitgen")

        with pytest.raises(ImportError, match=r"oracle\.fp8 must have _get_priority_backends"):
            vllm.register()
