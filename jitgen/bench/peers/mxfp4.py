# SPDX-License-Identifier: Apache-2.0
"""
Other libraries' products with MXFP4 weights on Hopper: humming-kernels, which generates CUDA for
every size and compiles it with NVRTC; the Triton kernels of OpenAI that vLLM ships for gpt-oss; and
Marlin's grouped product of 4-bit weights and bfloat16 activations, as vLLM builds it.

They are part of two wheels, of which some files are sufficient: see docs/mxfp4-hopper.md. A peer
that is not installed, or that cannot compute a case, is left out with a reason. Weights are
converted to a side's layout and activations are quantised before the side is timed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from jitgen.autotune.measure.clock import Call
from jitgen.bench.hopper_fp4.operands import SETS, Tokens, Weights, copies
from jitgen.bench.hopper_fp4.sides import Side
from jitgen.bench.peers import Unavailable, imported
from jitgen.bench.peers import find_all as find_all_of
from jitgen.bench.runner import Ready

_CLASSES: Mapping[str, str] = {
    "humming e4m3": "jitgen.bench.peers.mxfp4:HummingE4m3",
    "triton_kernels": "jitgen.bench.peers.mxfp4:TritonKernels",
    "marlin": "jitgen.bench.peers.mxfp4:Marlin",
    "humming bf16": "jitgen.bench.peers.mxfp4:HummingBf16",
}

NAMES = tuple(_CLASSES)

DISTRIBUTIONS = ("vllm", "humming-kernels", "triton")
"""Python distributions of the peers in this module."""


def find_all() -> tuple[list[Side], dict[str, str]]:
    """Return the available peers, and for each missing one the reason."""
    return find_all_of(NAMES, _CLASSES)


def folder_of_vllm() -> Path:
    """
    Return the folder of vLLM, without importing it: its parts are used alone.

    Raises:
        Unavailable: vLLM is not installed.
    """
    spec = importlib.util.find_spec("vllm")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise Unavailable("vllm is not installed, nor the files of it that are used")
    return Path(places[0])


_GEMM = "grouped_contiguous"
"""Humming's name of ragged groups."""


class _Humming(Side):
    """
    `humming.layer.HummingLayer` with the parameters that its heuristics choose, without further
    tuning.
    """

    note = "its own heuristics, not tuned"
    _input: ClassVar[dict[str, str]]

    def __init__(self) -> None:
        self._forward, self._layer, self._tune = (
            imported(f"humming.{part}", "humming") for part in ("forward", "layer", "tune")
        )

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the product; Humming's own kernel quantises the activations beforehand."""
        layers = weights.once(self.name, lambda: [self._made(weights) for _ in range(SETS)])
        config = layers[0].humming_config
        a, a_scale = self._forward.may_quant_input(config, tokens.x)
        starts = [0, *accumulate(tokens.row_counts)]
        options = {
            "input_scale": a_scale,
            "expert_layout": torch.tensor(starts, dtype=torch.int64, device=a.device),
            "compute_config": {"gemm_type": _GEMM},
            "tuning_config": self._tune.get_heuristics_config(
                config, shape_m=len(tokens.x), gemm_type=_GEMM
            ),
        }
        operands = [a] if a_scale is None else [a, a_scale]
        return tokens.ready(
            layers,
            lambda layer, out: partial(layer, a, outputs=out, **options),
            tokens.product(self.name, partial(_values, *operands), weights.values),
            num_bytes=weights.num_bytes + sum(x.nbytes for x in operands),
        )

    def _made(self, weights: Weights) -> Any:
        groups, n, k = weights.sizes
        layer = self._layer.HummingLayer(
            shape_n=n,
            shape_k=k,
            num_experts=groups,
            weight_config={"quant_method": "mxfp4"},
            input_config=dict(self._input),
            torch_dtype=torch.bfloat16,
        ).to(weights.packed.device)
        layer.load_from_tensors({"weight": weights.packed, "weight_scale": weights.scale})
        layer.transform()
        return layer


class HummingE4m3(_Humming):
    """Humming, a library of GEMMs, with activations of e4m3 and a scale for each of their rows."""

    name = "humming e4m3"
    _input: ClassVar[dict[str, str]] = {"dtype": "float8e4m3"}


class HummingBf16(_Humming):
    """Humming, a library of GEMMs, with activations of bfloat16."""

    name = "humming bf16"
    _input: ClassVar[dict[str, str]] = {}


def _values(a: Tensor, a_scale: Tensor | None = None) -> Tensor:
    """Return the values of activations, (M, K) float32."""
    return a.float() if a_scale is None else a.float() * a_scale.float().view(len(a), 1)


_NUM_WARPS = 8
"""Warps of a program, as in vLLM; the order of scales depends on it."""


class TritonKernels(Side):
    """`triton_kernels.matmul_ogs` in its layouts for Hopper, without split-K, as vLLM calls it."""

    name = "triton_kernels"
    note = "vLLM's copy; Hopper's layouts of values and scales, split_k 1"

    def __init__(self) -> None:
        third_party = str(folder_of_vllm() / "third_party")
        if third_party not in sys.path:
            sys.path.append(third_party)
        names = ("matmul_ogs", "routing", "tensor", "tensor_details.layout", "numerics")
        self._matmul, self._routing, self._tensor, self._layout, self._numerics = map(_part, names)
        flags = _part("matmul_ogs_details.opt_flags")
        flags.update_opt_flags_constraints({"split_k": 1})

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the product of groups whose rows are in order."""
        groups, _, _ = weights.sizes
        sets = weights.once(self.name, lambda: [self._weights(weights) for _ in range(SETS)])
        counts = torch.tensor(tokens.row_counts, dtype=torch.int32, device=tokens.x.device)
        places = self._routing.compute_expt_data(counts, groups, len(tokens.x))
        routing = self._routing.RoutingData(None, counts, groups, 1, places)

        def call(made: tuple[Any, Any], out: Tensor) -> Call:
            values, precision = made
            return partial(
                self._matmul.matmul_ogs,
                tokens.x,
                values,
                None,
                routing,
                precision_config=precision,
                y=out.unsqueeze(0),
            )

        expected = tokens.product("bf16", tokens.x.float, weights.values)
        return tokens.ready(sets, call, expected, num_bytes=weights.num_bytes + tokens.x.nbytes)

    def _weights(self, weights: Weights) -> tuple[Any, Any]:
        """Return values and scales with K before N, in the layouts that its kernels require."""
        layout, tensor = self._layout, self._tensor
        of_values, options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        values = tensor.wrap_torch_tensor(_along_n(weights.packed), dtype=tensor.FP4)
        values = tensor.convert_layout(values, of_values, **options)
        of_scale, options = layout.make_default_matmul_mxfp4_w_scale_layout(
            mx_axis=1, num_warps=_NUM_WARPS
        )
        scale = tensor.wrap_torch_tensor(_along_n(weights.scale))
        scale = tensor.convert_layout(scale, of_scale, **options)
        flexible = self._matmul.FlexCtx(rhs_data=self._numerics.InFlexData())
        return values, self._matmul.PrecisionConfig(weight_scale=scale, flex_ctx=flexible)


def _part(name: str) -> Any:
    return imported(f"triton_kernels.{name}", "triton_kernels")


def _along_n(x: Tensor) -> Tensor:
    return x.transpose(-2, -1)


_LIBRARY = "_moe_C.abi3.so"
_E2M1 = 0x2000000010102
"""vLLM's number for e2m1: 2 bits of exponent, 1 of mantissa, a sign, no infinity, no NaN."""

_BLOCKS = (8, 16, 32, 48, 64)
_FULL = 0.9
"""vLLM chooses the smallest block of rows that groups fill to less than this part."""

_TILE = 16
_LEAST_N = 64


class Marlin(Side):
    """`moe_wna16_marlin_gemm` out of the library beside vLLM's Python files."""

    name = "marlin"
    note = "vLLM's build, with the block of rows that vLLM would take"

    def __init__(self) -> None:
        library = folder_of_vllm() / _LIBRARY
        if not library.exists():
            raise Unavailable(f"this vllm has no {_LIBRARY}")
        try:
            torch.ops.load_library(str(library))
        except OSError as error:
            raise Unavailable(f"{_LIBRARY} does not go with this torch: {error}") from None
        self._gemm: Any = torch.ops._moe_C.moe_wna16_marlin_gemm

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the product with float32 reduction and without atomics, as in vLLM."""
        _, n, k = weights.sizes
        if n % _LEAST_N or k % (4 * _TILE):
            raise Unavailable(f"it wants N and K of multiples of {_LEAST_N}")
        sets, scale = weights.once(
            self.name, lambda: (copies(repack(weights.packed)), repack_scale(weights.scale))
        )
        device = tokens.x.device
        block = block_of_rows(len(tokens.x) / len(tokens.row_counts))
        ids, experts = blocks_of_rows(tokens.row_counts, block)
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        locks = torch.zeros(sms * 4, dtype=torch.int32, device=device)
        rows = [
            ids.to(device),
            experts.to(device),
            torch.tensor([len(ids)], dtype=torch.int32, device=device),
            torch.ones(len(tokens.x), 1, device=device),
        ]

        def call(packed: Tensor, out: Tensor) -> Call:
            # None of these: bias, scales of a and of groups, zero points, order of K.
            return partial(
                self._gemm,
                *(tokens.x, out, packed, None, scale, None, None, None, None, None, locks),
                *(*rows, block, 1, False, _E2M1, len(tokens.x), n, k),
                *(True, False, True, False, -1, -1, -1),
            )

        expected = tokens.product("bf16", tokens.x.float, weights.values)
        return tokens.ready(sets, call, expected, num_bytes=weights.num_bytes + tokens.x.nbytes)


def block_of_rows(mean: float) -> int:
    """Return the number of rows in a block of Marlin if groups have `mean` rows on average."""
    return next((block for block in _BLOCKS if mean / block < _FULL), _BLOCKS[-1])


def blocks_of_rows(row_counts: tuple[int, ...], block: int) -> tuple[Tensor, Tensor]:
    """
    Return the rows of all blocks, one block after the other, and the group of each block.

    Args:
        row_counts: Rows of each group; groups follow each other.
        block: Rows of a block. Places of a block after a group's last row contain the total number
            of rows.
    """
    ids: list[int] = []
    experts: list[int] = []
    first, rows = 0, sum(row_counts)
    for group, count in enumerate(row_counts):
        blocks = -(-count // block)
        ids += [*range(first, first + count), *[rows] * (blocks * block - count)]
        experts += [group] * blocks
        first += count
    return torch.tensor(ids, dtype=torch.int32), torch.tensor(experts, dtype=torch.int32)


def repack(packed: Tensor) -> Tensor:
    """
    Return weights in the order in which Marlin's threads read them.

    Four neighbouring tiles of 16 x 16 (K, N) form 1024 codes. The eight codes of a thread, from two
    columns of tensor core fragments, share a word, in the order 0, 2, 4, 6, 1, 3, 5, 7.

    Args:
        packed: (G, N, K / 2) uint8.

    Returns:
        (G, K / 16, 2 N) int32.
    """
    groups, n, half = packed.shape
    k = half * 2
    order = _order_of_codes().to(packed.device)
    words = packed.new_empty((groups, k // _TILE, n * 2), dtype=torch.int32)
    for word, each in zip(words, packed, strict=True):
        codes = torch.stack((each & 15, each >> 4), -1).flatten(-2).T
        tiles = codes.reshape(k // _TILE, _TILE, n // _TILE, _TILE).transpose(1, 2)
        nibbles = tiles.reshape(-1, len(order))[:, order].view(k // _TILE, n * 2, 4, 2)
        joined = nibbles[..., 0] | nibbles[..., 1] << 4
        word.copy_(joined.contiguous().view(torch.int32).squeeze(-1))
    return words


def repack_scale(scale: Tensor) -> Tensor:
    """
    Return scales in the order in which Marlin's threads read them.

    Args:
        scale: (G, N, K / 32) uint8.

    Returns:
        (G, K / 32, N) float8_e8m0fnu.
    """
    groups, n, blocks = scale.shape
    eight = torch.arange(8)
    order = (eight.unsqueeze(1) + 8 * eight).flatten().to(scale.device)
    permuted = scale.transpose(1, 2).reshape(-1, len(order))[:, order]
    pairs = permuted.reshape(-1, 4)[:, [0, 2, 1, 3]]
    return pairs.reshape(groups, blocks, n).view(torch.float8_e8m0fnu)


def _order_of_codes() -> Tensor:
    """Return the source index of each of 1024 codes of four tiles."""
    order = []
    for thread in range(32):
        column, row = thread // 4, 2 * (thread % 4)
        of_tile = [
            _TILE * each + column + 8 * half
            for half in (0, 1)
            for each in (row, row + 1, row + 8, row + 9)
        ]
        for tile in range(4):
            codes = [place + _TILE * _TILE * tile for place in of_tile]
            order += [codes[place] for place in (0, 2, 4, 6, 1, 3, 5, 7)]
    return torch.tensor(order)
