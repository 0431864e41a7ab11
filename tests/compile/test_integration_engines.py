# SPDX-License-Identifier: Apache-2.0
"""
What jitgen hangs into vLLM and SGLang, with stand-ins for their modules.

`tests/service/test_vllm.py` runs a real vLLM; nothing here runs a real SGLang.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from jitgen.errors import ToolchainError
from jitgen.integrations import sglang, sglang_experts, sizes, vllm
from jitgen.integrations.vllm_activations import fields_of
from jitgen.layer import reference
from tests import needs
from tests.moe_cases import EXPERTS, HIDDEN, INTERMEDIATE, TOP_K, Case, make
from tests.sglang_modules import Sglang, runner_config
from tests.vllm_modules import MOE, layer_of_vllm, loading, stand_in, vllm_modules


@pytest.mark.usefixtures("shared_cache")
class TestSizes:
    @pytest.mark.parametrize(
        ("form", "gate"),
        [
            ("bf16", {}),
            ("block128", {}),
            ("row", {}),
            ("bf16_bias", {}),
            ("bf16", {"activation": "swiglu_clamp", "swiglu_limit": 7.0}),
            ("bf16", {"activation": "relu2"}),
        ],
    )
    def test_a_layer_without_weights_has_the_same_plan(
        self, form: str, gate: dict[str, Any]
    ) -> None:
        import jitgen

        case = make(form, **gate)
        found = sizes.Sizes(
            hidden=HIDDEN,
            intermediate=INTERMEDIATE,
            experts=EXPERTS,
            local_experts=EXPERTS,
            top_k=TOP_K,
            form=str(case.weights.activation_format),
            gate=tuple((name, value) for name, value in case.config.gate.items() if value),
            has_bias=form == "bf16_bias",
        )
        layer = jitgen.MoELayer(case.config, case.weights)

        assert found.plan(512).sweeps == layer.plan(512).sweeps

    def test_a_layer_whose_kernels_failed_is_tried_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that raised, or told of a kernel that failed, counted as done for all layers."""
        reports = iter([RuntimeError, False, True, RuntimeError])
        made = []

        def prewarm(*_: object, **__: object) -> Any:
            made.append(1)
            report = next(reports)
            if report is RuntimeError:
                raise RuntimeError("no room")
            return SimpleNamespace(ok=report, rows=())

        monkeypatch.setattr(sizes, "prewarm", prewarm)
        monkeypatch.setattr(sizes, "_seen", set())
        layer = sizes.Sizes(
            hidden=HIDDEN,
            intermediate=INTERMEDIATE,
            experts=EXPERTS,
            local_experts=EXPERTS,
            top_k=TOP_K,
        )
        with pytest.raises(RuntimeError):
            sizes.prewarmed(layer, max_tokens=8)
        for _ in range(4):
            sizes.prewarmed(layer, max_tokens=8)

        assert len(made) == 3


class Backend(Enum):
    TRITON = 1
    MARLIN = 2


class TestVllm:
    def test_only_where_it_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who has both installed, and did not ask for it, has vLLM as it is."""
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        monkeypatch.setitem(sys.modules, "vllm", None)
        vllm.register()
        monkeypatch.setenv("VLLM_PLUGINS", "lora,other")
        vllm.register()
        monkeypatch.setenv("VLLM_PLUGINS", "lora,jitgen")

        with pytest.raises(ImportError):
            vllm.register()

    def test_ours_are_asked_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Ours:
            pass

        def choose(backend: Backend) -> list[object]:
            return [backend.name]

        oracles = [
            stand_in(
                monkeypatch,
                f"{MOE}.oracle.{name}",
                backend_to_kernel_cls=choose,
                _get_priority_backends=lambda *_: [],
            )
            for name in ("unquantized", "fp8")
        ]
        experts = ModuleType("vllm_experts")
        experts.JitgenExperts = Ours  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "jitgen.integrations.vllm_experts", experts)
        monkeypatch.setenv("VLLM_PLUGINS", "jitgen")
        vllm.register()
        vllm.register()

        for oracle in oracles:
            assert oracle.backend_to_kernel_cls(Backend.TRITON) == [Ours, "TRITON"]
            assert oracle.backend_to_kernel_cls(Backend.MARLIN) == ["MARLIN"]

    def test_formats_without_kernels_are_told_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A vLLM without one of these formats is as good, and one without functions for others."""
        found = {
            name: stand_in(
                monkeypatch,
                f"{MOE}.oracle.{name}",
                backend_to_kernel_cls=lambda each: [each.name],
                _get_priority_backends=lambda *_: [],
            )
            for name in ("unquantized", "fp8", "mxfp4", "int8", "w4a8")
        }
        monkeypatch.setenv("VLLM_PLUGINS", "jitgen")
        vllm.register()
        vllm.register()

        for _ in range(2):
            for name in ("int8", "w4a8"):
                assert found[name].backend_to_kernel_cls(Backend.MARLIN) == ["MARLIN"]
        told = [each.getMessage() for each in caplog.records if each.name == "vllm.jitgen"]
        forms = [line.removeprefix("jitgen does not compute layers with ") for line in told]
        missing = ["INT4", "NVFP4", "MXFP8", "MXFP4"]
        expected = [f"{form} weights: this vLLM" for form in missing]
        expected += ["INT8 weights: it has", "INT4 (FP8 tokens) weights: it has"]
        assert [
            " ".join(form.split()[: len(line.split())])
            for form, line in zip(forms, expected, strict=True)
        ] == expected


@pytest.fixture
def vllm_experts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class that vLLM makes layers of, over stand-ins for what it takes from vLLM."""
    vllm_modules(monkeypatch)
    yield importlib.import_module("jitgen.integrations.vllm_experts").JitgenExperts
    sys.modules.pop("jitgen.integrations.vllm_experts")


def of_vllm(case: Case, kind: Any, **changes: Any) -> tuple[Any, Callable[..., Tensor]]:
    """Return a layer's experts, and what calls them with weights as the layer has them."""
    weights = case.weights
    moe = layer_of_vllm(has_bias=weights.w13_bias is not None, **changes)
    is_fp8, is_row = weights.w13_scale is not None, weights.activation_format == "row"
    scales = [
        scale.unsqueeze(-1) if scale is not None and is_row else scale
        for scale in (weights.w13_scale, weights.w2_scale)
    ]
    biases = [
        None if bias is None else bias.bfloat16() for bias in (weights.w13_bias, weights.w2_bias)
    ]
    quant = SimpleNamespace(
        quant_dtype=torch.float8_e4m3fn if is_fp8 else None,
        per_act_token_quant=is_row,
        **dict(
            zip(("w1_scale", "w2_scale", "w1_bias", "w2_bias"), (*scales, *biases), strict=True)
        ),
    )
    with loading():
        experts = kind(moe, quant)

    def call(w1: Tensor, w2: Tensor) -> Tensor:
        out = torch.empty_like(case.x)
        rest = {"expert_map": None, "apply_router_weight_on_input": False}
        experts.apply(
            *(out, case.x, w1, w2, case.topk_weights, case.topk_ids),
            **rest,
            global_num_experts=EXPERTS,
        )
        return out

    return experts, call


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
class TestVllmExperts:
    def test_other_scales_are_seen(self, vllm_experts: Any) -> None:
        """Those of the first call were multiplied with all weights that came after."""
        case = make("block128")
        experts, call = of_vllm(case, vllm_experts)
        w1, w2 = case.weights.w13, case.weights.w2
        first = call(w1, w2)
        assert reference.relative_error(first, case.expected()) < case.tolerance
        chain = experts._kept[2]
        assert torch.equal(call(w1, w2), first)
        assert experts._kept[2] is chain  # nothing is made anew where nothing changed
        experts.quant_config.w2_scale = experts.quant_config.w2_scale * 4

        assert torch.equal(call(w1, w2), 4 * first)
        experts.quant_config.w2_scale.data = experts.quant_config.w2_scale / 4
        assert torch.equal(call(w1, w2), first)

    @pytest.mark.parametrize("change", ["tensor", "data", "in place"])
    def test_other_weights_are_seen(self, change: str, vllm_experts: Any) -> None:
        case = make("bf16")
        _, call = of_vllm(case, vllm_experts)
        w1, w2 = case.weights.w13, case.weights.w2
        first = call(w1, w2)
        if change == "tensor":
            w2 = w2 * 2
        elif change == "data":
            w2.data = w2 * 2
        else:
            w2.data.mul_(2)

        assert torch.equal(call(w1, w2), 2 * first)

    @pytest.mark.parametrize(
        ("form", "layer", "gate"),
        [
            ("row", {}, {}),
            ("bf16", {"swiglu_limit": 0.3}, {"activation": "swiglu_clamp", "swiglu_limit": 0.3}),
            ("bf16", {"activation": "relu2_no_mul"}, {"activation": "relu2"}),
            (
                "bf16_bias",
                {"activation": "swigluoai"},
                {
                    "activation": "swiglu_oai",
                    "interleaved": True,
                    "swiglu_limit": 7.0,
                    "swiglu_alpha": 1.702,
                },
            ),
            (
                "bf16",
                {
                    "activation": "swigluoai_uninterleave",
                    "swiglu_limit": 0.5,
                    "swiglu_alpha": 1.2,
                    "swiglu_beta": 1.0,
                },
                {
                    "activation": "swiglu_bias",
                    "swiglu_limit": 0.5,
                    "swiglu_alpha": 1.2,
                    "swiglu_beta": 1.0,
                },
            ),
            (
                "bf16",
                {
                    "activation": "situ",
                    "activation_situ_beta": 0.4,
                    "activation_situ_linear_beta": 0.7,
                },
                {"activation": "situ", "gate_softcap": 0.4, "up_softcap": 0.7},
            ),
        ],
        ids=str,
    )
    def test_formats_and_activations(
        self, form: str, layer: dict[str, Any], gate: dict[str, Any], vllm_experts: Any
    ) -> None:
        """Only SiLU in bfloat16 and FP8 of blocks was taken."""
        case = make(form, **gate)
        _, call = of_vllm(case, vllm_experts, **layer)
        found = [call(case.weights.w13, case.weights.w2) for _ in range(2)]

        assert torch.equal(*found)
        assert reference.relative_error(found[0], case.expected()) < case.tolerance

    def test_numbers_of_quantisation_count_first(self, vllm_experts: Any) -> None:
        layer = layer_of_vllm(swiglu_limit=5.0)
        quant = SimpleNamespace(gemm1_clamp_limit=3.0, gemm1_alpha=None)

        assert fields_of(layer) == {"activation": "swiglu_clamp", "swiglu_limit": 5.0}
        assert fields_of(layer, quant) == {"activation": "swiglu_clamp", "swiglu_limit": 3.0}

    @pytest.mark.parametrize(
        ("layer", "why"),
        [
            ({"in_dtype": torch.float16}, "tokens are torch.float16, and kernels take bfloat16"),
            ({"activation": "mish"}, "no mish"),
            ({"activation": "gelu", "swiglu_limit": 7.0}, "no kernel has gelu with its numbers"),
            ({"swiglu_alpha": 1.7}, "no kernel has silu with its numbers"),
            ({"activation": "swigluoai", "swiglu_beta": 2.0}, "no kernel has swigluoai with"),
            ({"activation": "swigluoai_uninterleave"}, "no kernel has swigluoai_uninterleave"),
            ({"activation": "situ", "activation_situ_beta": 4.0}, "no kernel has situ with its"),
        ],
        ids=str,
    )
    def test_what_is_not_taken_is_told_once(
        self,
        layer: dict[str, Any],
        why: str,
        vllm_experts: Any,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The reason was a line for those who debug vLLM."""
        for _ in range(2):
            fits, _ = vllm_experts.is_supported_config(vllm_experts, layer_of_vllm(**layer))
            assert not fits

        told = [each.getMessage() for each in caplog.records if each.name == "vllm.jitgen"]
        (line,) = told
        assert f"jitgen does not compute layers of {EXPERTS} of {EXPERTS} experts of " in line
        assert why in line

    def test_what_is_taken_is_told_once(
        self, vllm_experts: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "vllm.jitgen")
        case = make("bf16")
        for _ in range(2):
            assert vllm_experts.is_supported_config(vllm_experts, layer_of_vllm()) == (True, None)
            of_vllm(case, vllm_experts)

        layer = f"{EXPERTS} of {EXPERTS} experts of {HIDDEN} x {INTERMEDIATE}"
        told = f"jitgen computes layers of {layer}, {TOP_K} for each token, silu, quantised: none"
        assert [each.getMessage() for each in caplog.records if each.name == "vllm.jitgen"] == [
            told
        ]

    def test_memory_of_weights_that_moved_is_given_back(self, vllm_experts: Any) -> None:
        """A chain for each place was kept, and with it all weights that were ever called."""
        case = make("bf16")
        _, call = of_vllm(case, vllm_experts)
        first = case.weights.w2.clone()
        memory = StorageWeakRef(first.untyped_storage())
        call(case.weights.w13, first)
        del first
        call(case.weights.w13, case.weights.w2)

        assert memory.expired()


def of_sglang(case: Case, **changes: Any) -> tuple[Any, Any, Any]:
    """Return what SGLang hands to its fused experts."""
    weights = case.weights
    is_fp8 = weights.w13_scale is not None
    dispatched = SimpleNamespace(
        hidden_states=case.x,
        topk_output=SimpleNamespace(topk_weights=case.topk_weights, topk_ids=case.topk_ids),
    )
    is_row = weights.activation_format == "row"
    scales = [
        scale.unsqueeze(-1) if scale is not None and is_row else scale
        for scale in (weights.w13_scale, weights.w2_scale)
    ]
    given = {
        **dict.fromkeys(sglang_experts._OTHER_FORMATS, False),
        "w13_weight": weights.w13,
        "w2_weight": weights.w2,
        "w13_scale": scales[0],
        "w2_scale": scales[1],
        "b13": weights.w13_bias,
        "b2": weights.w2_bias,
        "a13_scale": None,
        "a2_scale": None,
        "use_fp8_w8a8": is_fp8,
        "per_channel_quant": is_row,
        "block_shape": [128, 128] if is_fp8 and not is_row else None,
    }
    layer = vars(runner_config(num_experts=EXPERTS))
    for name, value in changes.items():
        assert name in given or name in layer
        (given if name in given else layer)[name] = value
    return dispatched, SimpleNamespace(**given), SimpleNamespace(**layer)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Any]:
    """Modules of SGLang as far as `register` looks at them; returns its fused experts."""
    return Sglang(monkeypatch).functions


@needs.compiler
@pytest.mark.usefixtures("shared_cache")
class TestSglang:
    def test_only_where_it_is_named(
        self, pool: dict[tuple[str, str], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usual = dict(pool)
        monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
        sglang.register()

        assert pool == usual

    @pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.6.0", "0.5.230"])
    def test_another_version_is_refused(
        self, version: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its classes may differ in what nothing here would see."""
        usual = dict(Sglang(monkeypatch, version).functions)
        monkeypatch.setenv("SGLANG_PLUGINS", "jitgen")
        with pytest.raises(ToolchainError, match=r"written for SGLang 0\.5\.23 .*\(got "):
            sglang.register()
        engine = Sglang(monkeypatch, "0.5.23.post2")
        sglang.register()

        assert engine.functions.keys() == usual.keys()  # nothing between ranks was asked for

    @pytest.mark.parametrize(
        ("form", "numbers", "gate"),
        [
            ("block128", {}, {}),
            *(
                pytest.param(*each, marks=pytest.mark.nightly)
                for each in (
                    ("bf16", {}, {}),
                    ("row", {}, {}),
                    (
                        "bf16",
                        {"gemm1_clamp_limit": 0.3},
                        {"activation": "swiglu_step", "swiglu_limit": 0.3},
                    ),
                    (
                        "bf16",
                        {"swiglu_limit": 0.3},
                        {"activation": "swiglu_clamp", "swiglu_limit": 0.3},
                    ),
                    (
                        "bf16_bias",
                        {"gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0},
                        {
                            "activation": "swiglu_oai",
                            "interleaved": True,
                            "swiglu_limit": 7.0,
                            "swiglu_alpha": 1.702,
                        },
                    ),
                    ("bf16", {"activation": "relu2", "is_gated": False}, {"activation": "relu2"}),
                )
            ),
        ],
        ids=str,
    )
    def test_a_layer(
        self,
        form: str,
        numbers: dict[str, Any],
        gate: dict[str, Any],
        pool: dict[tuple[str, str], Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("SGLANG_PLUGINS", "jitgen")
        sglang.register()
        sglang.register()
        case = make(form, **gate)
        given = of_sglang(case, **numbers)
        found = [pool["none", "triton"](*given).hidden_states for _ in range(2)]

        assert torch.equal(*found)
        expected = 2.5 * case.expected()
        assert reference.relative_error(found[0], expected) < case.tolerance

    @pytest.mark.parametrize(
        "changes",
        [
            {"activation": "mish"},
            {"gemm1_alpha": 1.7},
            {"activation": "gelu", "swiglu_limit": 10.0},
            {"a13_scale": torch.ones(1)},
            {"per_channel_quant": True},
            {"use_int8_w8a8": True},
            {"block_shape": [64, 64]},
            {"no_combine": True},
        ],
    )
    def test_another_kind_of_layer_is_left_alone(
        self,
        changes: dict[str, Any],
        pool: dict[tuple[str, str], Any],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setenv("SGLANG_PLUGINS", "jitgen")
        sglang.register()

        assert pool["none", "triton"](*of_sglang(make("block128"), **changes)) == "its own"
        assert "SGLang keeps its own experts" in caplog.text

    @pytest.mark.parametrize("name", ["w13_weight", "w2_weight", "w2_scale"])
    def test_what_changed_is_seen(
        self, name: str, pool: dict[tuple[str, str], Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A chain was found again by the address of the first weight alone."""
        monkeypatch.setenv("SGLANG_PLUGINS", "jitgen")
        sglang.register()
        run = pool["none", "triton"]
        dispatched, given, layer = of_sglang(make("block128"))
        first = run(dispatched, given, layer).hidden_states
        before = getattr(given, name)
        changed = before * 4 if name.endswith("scale") else before.flip(0)
        setattr(given, name, changed)
        second = run(dispatched, given, layer).hidden_states
        setattr(given, name, before)

        assert not torch.equal(second, first)
        assert not name.endswith("scale") or torch.equal(second, 4 * first)
        assert torch.equal(run(dispatched, given, layer).hidden_states, first)

    def test_who_asks_for_the_same_bits_gets_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By jitgen's kernels where JITGEN_NUMERICS promises it, else by SGLang's own."""
        monkeypatch.setenv("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "1")
        given = of_sglang(make("block128"))

        assert "JITGEN_NUMERICS" in sglang_experts.refusal(*given)
        monkeypatch.setenv("JITGEN_NUMERICS", "invariant")
        assert not sglang_experts.refusal(*given)
