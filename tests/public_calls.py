# SPDX-License-Identifier: Apache-2.0
"""
A small call of every public function that launches kernels on tensors, as data.

`tests/compile/test_dispatcher.py` drives each through all that torch's dispatcher would have done
(beside it, `test_dispatcher_memory.py`), and holds the list against the public functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

import jitgen
import jitgen.torch
from jitgen.config import BLayout
from tests import call_tensors as of_call
from tests.call_tensors import EXPERTS, GROUPS, HIDDEN, ROWS, TOKENS, TOP_K, K, N, Tensors

DEVICE = "cpu"
"""Where the tensors of the tests are; the tests of GPUs say another."""


class Call(NamedTuple):
    """
    One call.

    Attributes:
        name: The function, and what is special about the call.
        run: Makes the call with tensors by their names; returns the results that are written.
        tensors: Returns new tensors on a device.
        written: Names of the tensors that it writes.
        in_place: Names of the tensors that what is written may be, element by element.
        differentiable: Names of the tensors that have a gradient.
        by_torch: Whether torch's own operations may serve, which see to all of it.
        is_on_hopper: Whether sm_90a has kernels for its types.
    """

    name: str
    run: Callable[[Tensors], Any]
    tensors: Callable[[str], Tensors]
    written: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    differentiable: tuple[str, ...] = ()
    by_torch: bool = False
    is_on_hopper: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def function(self) -> str:
        """The public function that it calls."""
        return self.name.partition(" ")[0]

    def new(self) -> Tensors:
        """Return new tensors on the device of the tests."""
        return self.tensors(DEVICE)


_OUT = ("out",)
_PAIR = ("out[0]", "out[1]")
_ROUTING = tuple(f"out.{name}" for name in jitgen.Routing._fields)
_SORTING = tuple(f"out.{name}" for name in jitgen.Sorting._fields)
_ROWS_N, _PAIRS_K = (ROWS, N), (TOKENS * TOP_K, K)
_AB, _ABIAS = ("a", "b"), ("a", "b", "bias")

CALLS = (
    Call("grouped_gemm", of_call.gemm(), of_call.unscaled, differentiable=_AB),
    Call(
        "grouped_gemm float32",
        of_call.gemm(out_dtype=torch.float32),
        of_call.float32,
        differentiable=_AB,
        is_on_hopper=False,
    ),
    Call(
        "grouped_gemm out",
        of_call.gemm(),
        lambda d: of_call.with_out(of_call.unscaled(d), *_ROWS_N),
        _OUT,
    ),
    Call(
        "grouped_gemm bias",
        of_call.gemm(),
        lambda d: of_call.with_bias(of_call.unscaled(d)),
        differentiable=_ABIAS,
    ),
    Call("grouped_gemm contiguous", of_call.gemm(), of_call.contiguous, differentiable=_AB),
    Call("grouped_gemm block128", of_call.gemm(), lambda d: of_call.scaled("per_token_group", d)),
    Call(
        "grouped_gemm block128 out",
        of_call.gemm(),
        lambda d: of_call.with_out(of_call.scaled("per_token_group", d), *_ROWS_N),
        _OUT,
    ),
    Call(
        "grouped_gemm row bias out",
        of_call.gemm(),
        lambda d: of_call.with_out(of_call.with_bias(of_call.scaled("per_row", d)), *_ROWS_N),
        _OUT,
    ),
    Call(
        "grouped_gemm masked",
        of_call.gemm(),
        lambda d: of_call.scaled("per_token_group", d, masked=True),
    ),
    Call("grouped_gemm nvfp4", of_call.gemm(), of_call.nvfp4, is_on_hopper=False),
    Call(
        "grouped_gemm nvfp4 out",
        of_call.gemm(),
        lambda d: of_call.with_out(of_call.nvfp4(d), *_ROWS_N),
        _OUT,
        is_on_hopper=False,
    ),
    Call(
        "grouped_gemm exact1 out",
        of_call.prepacked_gemm(BLayout.EXACT1),
        lambda d: of_call.with_out(of_call.prepacked(BLayout.EXACT1, d), *_ROWS_N),
        _OUT,
    ),
    Call(
        "grouped_gemm wide1",
        of_call.prepacked_gemm(BLayout.WIDE1),
        lambda d: of_call.prepacked(BLayout.WIDE1, d),
    ),
    Call("activation_quantize", of_call.of(jitgen.activation_quantize), of_call.silu),
    Call(
        "activation_quantize none",
        of_call.of(jitgen.activation_quantize, format="none"),
        of_call.silu,
        differentiable=("x",),
    ),
    Call(
        "activation_quantize tensor out",
        of_call.into(jitgen.activation_quantize, format="tensor"),
        lambda d: of_call.with_parts(of_call.silu_tensor(d), *_ROWS_N),
        ("out[0]",),
    ),
    Call(
        "activation_quantize out",
        of_call.into(jitgen.activation_quantize),
        lambda d: of_call.with_parts(of_call.silu(d), *_ROWS_N, of_scale=(ROWS, 1)),
        _PAIR,
    ),
    Call("permute_quantize", of_call.of(jitgen.permute_quantize, top_k=TOP_K), of_call.permuted),
    Call(
        "permute_quantize none",
        of_call.of(jitgen.permute_quantize, top_k=TOP_K, format="none"),
        of_call.permuted,
        differentiable=("x",),
    ),
    Call(
        "permute_quantize out",
        of_call.into(jitgen.permute_quantize, top_k=TOP_K),
        lambda d: of_call.with_parts(of_call.permuted(d), *_PAIRS_K, of_scale=(TOKENS * TOP_K, 2)),
        _PAIR,
    ),
    Call(
        "permute_quantize row out",
        of_call.into(jitgen.permute_quantize, top_k=TOP_K, format="row"),
        lambda d: of_call.with_parts(of_call.permuted(d), *_PAIRS_K, of_scale=(TOKENS * TOP_K,)),
        _PAIR,
    ),
    Call(
        "activation_backward",
        of_call.of(jitgen.activation_backward),
        of_call.activated,
    ),
    Call(
        "activation_backward out",
        of_call.backward_into,
        of_call.activated_out,
        ("out[0]", "out[1]", "out[2]"),
    ),
    Call("add_lora", of_call.of(jitgen.add_lora), of_call.adapted),
    Call(
        "add_lora out",
        of_call.of(jitgen.add_lora),
        lambda d: of_call.with_out(of_call.adapted(d), TOKENS * TOP_K, N),
        _OUT,
        in_place=("y",),
    ),
    Call(
        "combine",
        of_call.of(jitgen.combine),
        of_call.combined,
        differentiable=("y", "topk_weights", "shared"),
    ),
    Call(
        "combine out",
        of_call.of(jitgen.combine),
        lambda d: of_call.with_out(of_call.combined(d), TOKENS, N),
        _OUT,
        in_place=("shared",),
    ),
    Call("moe_fc2_dense", of_call.of(jitgen.moe_fc2_dense), of_call.fc2),
    Call(
        "moe_fc2_dense out",
        of_call.of(jitgen.moe_fc2_dense),
        lambda d: of_call.with_out(of_call.fc2(d), TOKENS, N),
        _OUT,
    ),
    Call(
        "grouped_gemm_wgrad",
        of_call.of(jitgen.grouped_gemm_wgrad),
        of_call.wgrad,
        differentiable=("dy", "a"),
    ),
    Call(
        "grouped_gemm_wgrad out",
        of_call.of(jitgen.grouped_gemm_wgrad),
        lambda d: of_call.with_out(of_call.wgrad(d), GROUPS, N, K),
        _OUT,
    ),
    Call("route", of_call.route, of_call.routed, differentiable=("logits",)),
    Call("route out", of_call.route, of_call.route_out, _ROUTING),
    Call("sort_pairs out", of_call.sort, of_call.sorted_out, _SORTING),
    *(
        Call(
            f"quantize.{name} out",
            of_call.quantised(name),
            lambda d, name=name: of_call.quantised_out(name, d),
            _PAIR,
            by_torch=True,
        )
        for name in ("mxfp8", "mxfp4", "nvfp4")
    ),
    Call("quantize.unpack_mxfp4 out", of_call.unpacked, of_call.unpacked_out, _PAIR, by_torch=True),
    Call("moe", of_call.of(jitgen.moe), of_call.layer),
    Call(
        "moe bf16",
        of_call.of(jitgen.moe),
        of_call.plain_layer,
        differentiable=("x", "w13", "w2", "topk_weights", "w13_bias", "w2_bias", "shared"),
    ),
    Call(
        "moe out",
        of_call.of(jitgen.moe, chunk_tokens=5),
        of_call.layer_out,
        _OUT,
        in_place=("x", "shared"),
    ),
    Call("moe_experts", of_call.of(jitgen.moe_experts), of_call.experts),
    Call(
        "moe_experts out",
        of_call.of(jitgen.moe_experts),
        lambda d: of_call.with_out(of_call.experts(d), EXPERTS, 8, HIDDEN),
        _OUT,
        in_place=("x",),
    ),
    Call(
        "torch.grouped_mm",
        of_call.of(jitgen.torch.grouped_mm),
        of_call.torch_plain,
        differentiable=("mat_a", "mat_b"),
    ),
    Call(
        "torch.scaled_grouped_mm",
        lambda t: jitgen.torch.scaled_grouped_mm(
            t["mat_a"], t["mat_b"], t["scale_a"], t["scale_b"], t["offs"]
        ),
        of_call.torch_scaled,
    ),
)

OF_TORCH: Mapping[str, str] = dict.fromkeys(
    (
        *("from_atoms", "from_torch", "from_trtllm", "from_words", "int4_from_awq"),
        *("int4_from_gptq", "is_kernel_layout", "prepack_int4", "prepack_mxfp8", "prepack_nvfp4"),
        *("kernel_layout", "load_prepacked", "per_block", "per_matrix", "per_row", "per_tensor"),
        *("per_token_group", "prepack_mxfp4", "prepack_mxfp4_from", "save_prepacked", "split_bf16"),
        *("spread", "to_atoms", "to_torch", "to_trtllm", "to_words"),
    ),
    "made of torch's own operations, which its dispatcher sees",
)
"""Public functions of `jitgen.quantize` that launch no kernel of jitgen's, and why."""
