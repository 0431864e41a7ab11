# SPDX-License-Identifier: Apache-2.0
"""Kinds of transformers' experts: FP8 ones, which have no gradients, and the plans of all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import jitgen
from jitgen.config.activation_quantize import Activation
from jitgen.errors import InputError
from jitgen.integrations import transformers as integration
from jitgen.integrations.transformers_activations import activation_of
from jitgen.integrations.transformers_chains import names_of
from jitgen.ops.activation_quantize.reference import of_gate
from tests import needs

pytest.importorskip("transformers", reason="needs jitgen[transformers]")

from transformers.activations import ACT2FN

from tests.compile.test_integration_training import FEW  # which need it
from tests.transformers_experts import call, classes, errors, fp8_experts, make

pytestmark = [
    needs.compiler,
    pytest.mark.usefixtures("shared_cache", "registered"),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]


class TestFp8:
    @pytest.mark.parametrize(
        "changes",
        [
            {"limit": 0.5},
            {"gate_softcap": 0.4, "up_softcap": 0.7},
            {"act_fn": torch.nn.Mish()},
            {"has_gate": False, "act_fn": ACT2FN["relu2"]},
        ],
        ids=str,
    )
    def test_activations(self, changes: dict[str, Any]) -> None:
        """By kernels, or by the module's own code between the products."""
        module = fp8_experts(**changes)
        x, ids = torch.randn(9, 128).bfloat16(), torch.arange(18).view(9, 2) % 6
        counts = torch.rand(9, 2)
        with torch.no_grad():
            found = integration.experts_forward(module, x, ids, counts)
            up, down = (
                _unscaled(getattr(module, name), getattr(module, f"{name}_scale_inv"))
                for name in names_of(module)
            )
            h = own(module, torch.einsum("tk,tjnk->tjn", x.float(), up[ids]).flatten(0, 1))
            y = torch.einsum("tjn,tjkn->tjk", h.unflatten(0, ids.shape), down[ids])
            right = (y * counts[..., None]).sum(1)

        assert errors([found], [right])[0] < 0.08

    def test_gradients_are_refused_by_name(self) -> None:
        """Of tokens, too, which a frozen model would have to let pass."""
        x = torch.randn(5, 128).bfloat16().requires_grad_()
        given = torch.tensor([[0, 1]] * 5), torch.rand(5, 2)
        words = (
            r"float8_e4m3fn experts have no gradients \(Experts\): call the model under torch.no"
        )
        with pytest.raises(InputError, match=words):
            integration.experts_forward(fp8_experts(), x, *given)

    @pytest.mark.parametrize("flag", ["has_bias", "is_transposed"])
    def test_other_kinds_are_refused_by_name(self, flag: str) -> None:
        module = fp8_experts(**{flag: True})
        given = torch.randn(5, 128).bfloat16(), torch.tensor([[0, 1]] * 5), torch.rand(5, 2)
        with torch.no_grad(), pytest.raises(InputError, match=f"with {flag} = True .*: take group"):
            integration.experts_forward(module, *given)

    def test_tokens_in_float32(self) -> None:
        """As a norm gives them under autocast; they are quantised anyway."""
        module = fp8_experts()
        x, given = torch.randn(5, 128), (torch.tensor([[0, 1]] * 5), torch.rand(5, 2))
        with torch.no_grad():
            found = integration.experts_forward(module, x, *given)
            expected = integration.experts_forward(module, x.bfloat16(), *given)

        assert found.dtype is torch.float32
        assert torch.equal(found.bfloat16(), expected)


def _unscaled(weight: Tensor, scale: Tensor) -> Tensor:
    return weight.float() * scale.repeat_interleave(128, 1).repeat_interleave(128, 2)


def probe(module: Any) -> Tensor:
    """Return values of every size, for gates and ups."""
    chance = torch.Generator().manual_seed(6)
    columns = 64 if getattr(module, "has_gate", True) else 32
    return torch.randn(40, columns, generator=chance, dtype=torch.float64) * 9


def own(module: Any, h: Tensor) -> Tensor:
    """Return what a module's own code makes of the first product."""
    return module._apply_gate(h) if getattr(module, "has_gate", True) else module.act_fn(h)


def of_jitgen(fields: dict[str, Any], h: Tensor) -> Tensor:
    """Return what the reference of jitgen's kernels makes of it."""
    kind = Activation(fields["activation"])
    if not kind.is_gated:
        return of_gate(kind, h, None)
    halves = h.unflatten(1, (-1, 2)).unbind(2) if fields.get("interleaved") else h.chunk(2, 1)
    return of_gate(kind, *halves, *(fields[name] for name in kind.numbers))


class TestActivations:
    """A class that is known by its name computes what jitgen takes it for."""

    @pytest.mark.parametrize("name", classes())
    def test_of_every_class(self, name: str) -> None:
        module = make(name, torch.bfloat16)
        fields = activation_of(module)

        assert fields is not None
        h = probe(module)
        assert errors([of_jitgen(fields, h)], [own(module, h)])[0] < 1e-6

    @pytest.mark.parametrize(
        ("changes", "kind"),
        [
            ({}, "swiglu"),
            ({"limit": 5.0}, "swiglu_clamp"),
            ({"swiglu_alpha": 1.5, "swiglu_limit": 5.0, "limit": 5.0}, "swiglu_oai"),
            ({"gate_softcap": 3.0, "up_softcap": 6.0}, "situ"),
            ({"act_fn": torch.nn.Mish()}, None),
            ({"act_fn": torch.nn.Mish(), "limit": 5.0}, None),
            ({"limit": -1.0}, None),
        ],
        ids=str,
    )
    def test_of_fp8_experts(self, changes: dict[str, Any], kind: str | None) -> None:
        """Their class has the gates of several models."""
        module = fp8_experts(**changes)
        fields = activation_of(module)

        assert (fields and fields["activation"]) == kind
        if fields:
            h = probe(module)
            assert errors([of_jitgen(fields, h)], [own(module, h)])[0] < 1e-6

    @pytest.mark.parametrize(
        ("word", "kind"),
        [
            *(("relu", "relu"), ("silu", "silu"), ("gelu", "gelu"), ("linear", "identity")),
            *(("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"), ("mish", None)),
        ],
    )
    def test_without_a_gate(self, word: str, kind: str | None) -> None:
        module = make("NemotronHExperts", torch.bfloat16, mlp_hidden_act=word)
        fields = activation_of(module)

        assert (fields and fields["activation"]) == kind
        if fields:
            h = probe(module)
            assert errors([of_jitgen(fields, h)], [own(module, h)])[0] < 1e-6


class TestPlans:
    @pytest.mark.sampled(9)
    @pytest.mark.parametrize("name", sorted(FEW))
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
    def test_they_hold_all_that_is_asked_for(self, name: str, dtype: torch.dtype) -> None:
        """Without gradients, whatever the batch: nothing compiles behind them."""
        module = make(name, dtype)
        module.config._experts_implementation = integration.IMPLEMENTATION
        assert integration.prewarm(module, max_tokens=32, arch="cpu", jobs=1).ok
        with jitgen.Session(on_miss="error"), torch.no_grad():
            for tokens in (1, 7, 32):
                module(*call(dtype, tokens))

    def test_an_activation_of_the_module_has_no_kernel(self) -> None:
        """Plans had one that no call asks for."""
        module = make("MixtralExperts", torch.bfloat16)
        for act_fn, is_there in ((module.act_fn, True), (torch.nn.Mish(), False)):
            module.act_fn = act_fn
            found = integration.plan(module, max_tokens=8, arch="sm_90a")
            ops = {sweep.problem.op for sweep in found.sweeps}
            assert ("activation_quantize" in ops) == is_there

    def test_of_types_without_kernels_there_are_none(self) -> None:
        with pytest.raises(InputError, match=r"sm_90a has no kernels .* torch\.float32"):
            integration.plan(make("MixtralExperts", torch.float32), max_tokens=8, arch="sm_90a")

    def test_of_a_model_without_memory(self) -> None:
        """In the build of an image a model is on meta."""
        for dtype in (torch.bfloat16, torch.float16):
            module = make("MixtralExperts", dtype).to("meta")
            assert integration.plan(module, max_tokens=8, arch="sm_90a").sweeps
