# SPDX-License-Identifier: Apache-2.0
"""
Tiny checkpoints with any names and any encoding, and the numbers in float64 that they stand for.

Values are decoded here with nothing of jitgen's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from jitgen.layer.checkpoints.encodings import ENCODINGS, Encoding
from jitgen.layer.checkpoints.family import FAMILIES

HIDDEN, EXPERTS, TOP_K, TOKENS = 160, 3, 2, 7
PREFIX = "model.layers.3.mlp"
BLOCK, GROUP = 128, 32
_CODES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
CODES = torch.cat([_CODES, -_CODES])

Roles = dict[str, Tensor]
"""The tensors of a matrix, by their roles."""


class Made(NamedTuple):
    """
    A checkpoint.

    Attributes:
        tensors: Tensors by their whole names.
        w13: (E, 2 I, H) float64, gates first.
        w2: (E, H, I) float64.
        bias13: (E, 2 I) float64, gates first.
        bias2: (E, H) float64.
    """

    tensors: dict[str, Tensor]
    w13: Tensor
    w2: Tensor
    bias13: Tensor
    bias2: Tensor


def cases() -> list[tuple[str, Encoding]]:
    """Return every family with every encoding that it can have."""
    return [
        (family, encoding)
        for family in (
            "deepseek_v3",
            "mixtral",
            "gpt_oss",
            "qwen3_5_moe",
            "llama4",
            "nemotron_h",
            "nemotron_h_fused",
        )
        for encoding in ENCODINGS
        if FAMILIES[family].is_fused or encoding.roles[0] != "blocks"
        if family != "llama4" or encoding.can_turn
    ]


def named(case: tuple[str, Encoding]) -> str:
    """Return the name of a case."""
    return f"{case[0]}-{case[1].name}-{case[1].roles[-1]}"


def _bytes(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8)


def _fp8(n: int, k: int) -> Tensor:
    return torch.randn(n, k).mul(20).to(torch.float8_e4m3fn)


def _wide(scale: Tensor, rows: int, columns: int, n: int, k: int) -> Tensor:
    return scale.double().repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:n, :k]


def _packed(n: int, k: int) -> tuple[Tensor, Tensor]:
    codes = _bytes(n, k // 2)
    return codes, CODES[torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()]


def matrix(  # noqa: PLR0911  # one for each encoding
    encoding: Encoding, n: int, k: int, group: int = GROUP
) -> tuple[Roles, Tensor]:
    """Return the tensors of a random matrix (N, K), and its numbers in float64."""
    roles = encoding.roles
    if encoding.name == "bf16":
        weight = torch.randn(n, k).div(8).bfloat16()
        return {roles[0]: weight}, weight.double()
    if encoding.name in ("mxfp8", "fp8_block32"):
        rows = 1 if encoding.name == "mxfp8" else GROUP
        weight, scale = _fp8(n, k), _bytes(-(-n // rows), k // GROUP, low=118, high=124)
        powers = torch.exp2(scale.double() - 127)
        return dict(zip(roles, (weight, scale), strict=True)), weight.double() * _wide(
            powers, rows, GROUP, n, k
        )
    if encoding.name.startswith("fp8"):
        sizes: dict[str, tuple[int, ...]] = {
            "fp8_block128": (-(-n // BLOCK), -(-k // BLOCK)),
            "fp8_row": (n, 1),
            "fp8_tensor": (1,),
        }
        weight, scale = _fp8(n, k), torch.rand(sizes[encoding.name]) / 100 + 0.001
        if encoding.name == "fp8_block128":
            return dict(zip(roles, (weight, scale), strict=True)), weight.double() * _wide(
                scale, BLOCK, BLOCK, n, k
            )
        return dict(zip(roles, (weight, scale), strict=True)), weight.double() * scale.double()
    if encoding.name == "mxfp4":
        codes, numbers = _packed(n, k)
        scale = _bytes(n, k // GROUP, low=118, high=124)
        numbers = numbers * _wide(torch.exp2(scale.double() - 127), 1, GROUP, n, k)
        if roles[0] == "blocks":
            codes = codes.view(n, k // GROUP, GROUP // 2)
        elif roles[1] == "scale":  # as DeepSeek-V4 has it
            codes, scale = codes.view(torch.int8), scale.view(torch.float8_e8m0fnu)
        return dict(zip(roles, (codes, scale), strict=True)), numbers
    if encoding.name == "nvfp4":
        codes, numbers = _packed(n, k)
        scale = (torch.rand(n, k // 16) * 400 + 1).to(torch.float8_e4m3fn)
        whole = torch.rand(1) / 1000 + 1e-4
        factor = whole.double() if roles[2] == "weight_scale_2" else 1 / (1 / whole).double()
        stored = whole if roles[2] == "weight_scale_2" else 1 / whole
        numbers = numbers * _wide(scale, 1, 16, n, k) * factor
        return dict(zip(roles, (codes, scale, stored.reshape(1)), strict=True)), numbers
    assert encoding.name.startswith("int4"), encoding.name
    values = torch.randint(-8, 8, (n, k))
    scale = (torch.rand(n, k // group) / 10 + 0.01).bfloat16()
    numbers = values.double() * _wide(scale, 1, group, n, k)
    if encoding.name == "int4":
        words = _words(torch.nn.functional.pad(values + 8, (0, -k % 8)))
        return dict(zip(roles, (words, scale, torch.tensor([n, k])), strict=True)), numbers
    is_gptq, groups = encoding.name == "int4_gptq", k // group
    words = _words(values + 8).T if is_gptq else _words((values + 8).T, (0, 2, 4, 6, 1, 3, 5, 7))
    zeros = _words(torch.full((groups, n), 7 if is_gptq else 8))
    order = torch.arange(k, dtype=torch.int32) // group
    return dict(zip(roles, (words, scale.half().T, zeros, order), strict=False)), (
        values.double() * _wide(scale.half(), 1, group, n, k)
    )


def _words(values: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """
    Pack each eight neighbours of the last dimension, 4 bits each, into an int32; `order` says which
    of them comes first, second and so on, from the low bits.
    """
    parts = values.unflatten(-1, (-1, 8))[..., list(order)]
    words = (parts << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int().contiguous()


def _like(
    gates: list[Roles], encoding: Encoding, roles: Roles, numbers: Tensor
) -> tuple[Roles, Tensor]:
    """
    Return the tensors of a matrix with the global scale of its expert's first gates, if its
    encoding has one, and the numbers that they then stand for.
    """
    if encoding.name != "nvfp4" or not gates:
        return roles, numbers
    role = encoding.roles[2]
    ratio = (gates[0][role] / roles[role]).double()
    factor = ratio if role == "weight_scale_2" else 1 / ratio
    return {**roles, role: gates[0][role]}, numbers * factor


def make(family: str, encoding: Encoding, intermediate: int, group: int = GROUP) -> Made:
    """Return a checkpoint; the same for the same arguments."""
    torch.manual_seed(intermediate)
    each = FAMILIES[family]
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, list[Tensor]] = {}
    parts: dict[str, list[Roles]] = {}
    for e in range(EXPERTS):
        for module in each.modules:
            rows = intermediate * each.rows
            size = (HIDDEN, intermediate) if module == each.down else (rows, HIDDEN)
            gates = parts.get(each.gate_up[0], [])[e:]
            roles, found = _like(gates, encoding, *matrix(encoding, *size, group))
            numbers.setdefault(module, []).append(found)
            parts.setdefault(module, []).append(roles)
    is_turned = family in ("llama4", "gpt_oss") and encoding.can_turn
    for module, experts in parts.items():
        for role in encoding.roles:
            if not each.is_fused:
                for e, roles in enumerate(experts):
                    tensors[f"{PREFIX}.experts.{e}.{module}.{role}"] = roles[role]
                continue
            whole = torch.stack([roles[role] for roles in experts])
            if is_turned and whole.dim() == 3:
                whole = whole.mT.contiguous()
            ends = {"weight": "", "weight_scale": "_weight_scale"}
            end = ends.get(role, f"_{role.removeprefix('weight_')}")
            tensors[f"{PREFIX}.experts.{module}{end}"] = whole
    w2 = torch.stack(numbers[each.down])
    w13 = torch.cat([torch.stack(numbers[module]) for module in each.gate_up], 1)
    bias13 = torch.zeros(EXPERTS, each.inputs * intermediate)
    bias2 = torch.zeros(EXPERTS, HIDDEN)
    if each.has_bias:
        bias13, bias2 = torch.randn_like(bias13), torch.randn_like(bias2)
        tensors[f"{PREFIX}.experts.gate_up_proj_bias"] = bias13
        tensors[f"{PREFIX}.experts.down_proj_bias"] = bias2
    if each.config.get("interleaved"):
        w13 = torch.cat([w13[:, 0::2], w13[:, 1::2]], 1)
        bias13 = torch.cat([bias13[:, 0::2], bias13[:, 1::2]], 1)
    return Made(tensors, w13, w2, bias13.double(), bias2.double())


def call() -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, weights of their experts, and the experts."""
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(TOKENS, HIDDEN, generator=chance)
    ids = torch.rand(TOKENS, EXPERTS, generator=chance).topk(TOP_K, 1).indices
    return x, torch.rand(TOKENS, TOP_K, generator=chance), ids


def expected(made: Made, *, rounded: bool, is_oai: bool) -> Tensor:
    """Return the result in float64, of numbers rounded to bfloat16 or not."""
    w13, w2 = (
        (each.float().bfloat16().double() if rounded else each) for each in (made.w13, made.w2)
    )
    x, weights, ids = (each.double() if each.is_floating_point() else each for each in call())
    out = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    for t in range(TOKENS):
        for j in range(TOP_K):
            e = int(ids[t, j])
            between = w13[e] @ x[t] + made.bias13[e]
            gate, up = between.chunk(2)
            if len(between) == w2.shape[2]:
                inner = between.relu() ** 2
            elif is_oai:
                gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
                inner = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            else:
                inner = torch.nn.functional.silu(gate) * up
            out[t] += weights[t, j] * (w2[e] @ inner + made.bias2[e])
    return out


def result(layer: Any) -> Tensor:
    """Return a layer's result by its reference in float32."""
    from jitgen.layer import reference

    x, weights, ids = call()
    return reference.moe(x, layer.weights, weights, ids, layer.config)
