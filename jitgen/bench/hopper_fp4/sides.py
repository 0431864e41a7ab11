# SPDX-License-Identifier: Apache-2.0
"""
jitgen's sides: FP8 weights, and prepacked weights in each layout with each kind of activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

import jitgen
from jitgen.bench.cases import Case
from jitgen.bench.hopper_fp4.operands import SETS, Tokens, Weights, copies, fp8_bits
from jitgen.bench.hopper_fp4.plain import Plain, fits, plain
from jitgen.bench.hopper_fp4.report import FP8
from jitgen.bench.runner import Ready
from jitgen.config import Arch, Config, DType, ScaleGranularity
from jitgen.config.config import SCALE_BLOCK, BLayout
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.config.prepacked import PrepackedFormat
from jitgen.config.unpack_weights import UnpackWeightsProblem
from jitgen.formats.prepacked import prepack_mxfp4
from jitgen.formats.prepacked_int4 import prepack_int4
from jitgen.formats.prepacked_mxfp8 import prepack_mxfp8
from jitgen.formats.prepacked_nvfp4 import prepack_nvfp4
from jitgen.formats.prepacked_weights import PrepackedWeights
from jitgen.formats.protocol import ceil_div
from jitgen.formats.split import split_bf16
from jitgen.ops.grouped_gemm.prepacked_algorithms import unpacked_problem
from jitgen.support.frozen import frozen
from jitgen.targets.devices import default_arch


class Side:
    """
    One way to multiply tokens by weights.

    Attributes:
        name: Its name in tables and JSON.
        note: Caveat for readers; empty if there is none.
    """

    name: str
    note: str

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """
        Return the side with its operands; preparing weights and scales is not timed.

        Raises:
            Unavailable: It cannot compute this case.
        """
        raise NotImplementedError


class Own(Side):
    """
    A side of jitgen's.

    Attributes:
        types: The types of the operands, as fields of a problem.
    """

    types: Mapping[str, Any]

    def fits(self, _case: Case) -> bool:
        """
        Return whether the side supports the sizes of a case: always, unless a subclass checks them.
        """
        return True

    def made(self, weights: Weights, tokens: Tokens) -> Callable[[GroupedGemmConfig], Ready]:
        """Return a function that returns the side with a given kernel."""
        raise NotImplementedError

    def prepare(self, weights: Weights, tokens: Tokens) -> Ready:
        """Return the side with the kernel that the selector chooses."""
        return self.made(weights, tokens)(self.kernels(tokens.case)[0])

    def others(self, weights: Weights, tokens: Tokens) -> dict[str, Callable[[], Ready]]:
        """Return, by name, a function that returns the side with each other candidate kernel."""
        made, others = self.made(weights, tokens), self.kernels(tokens.case)[1:]
        return {config.short: partial(made, config) for config in others}

    def problem(self, case: Case) -> GroupedGemmProblem:
        """Return the problem that the selector gets."""
        return replace(case.problem, m=sum(case.row_counts), **self.types)

    def kernels(self, case: Case, arch: Arch | None = None) -> list[GroupedGemmConfig]:
        """Return the candidates for a case, the selector's choice first."""
        choice = jitgen.select(self.problem(case), arch or default_arch())
        return [cast("GroupedGemmConfig", candidate.config) for candidate in choice.candidates]

    def beside(self, _case: Case, _arch: Arch) -> list[Config]:
        """
        Return the kernels that are launched in addition to the chosen one: none, unless a subclass
        has some.
        """
        return []


class Fp8(Own):
    """jitgen's FP8 kernel with block128 scales, on random FP8 weights."""

    name = FP8
    types: Mapping[str, Any] = {}
    note = "e4m3 weights with block128 scales: 8 bits a weight"

    def made(self, weights: Weights, tokens: Tokens) -> Callable[[GroupedGemmConfig], Ready]:
        """Return a function that returns the side with a given kernel for FP8 operands."""
        b, b_scale = weights.once(FP8, partial(_fp8_weights, weights))

        def values() -> Tensor:
            return weights.once("fp8 values", partial(_fp8_values, b[0], b_scale))

        a, a_scale = jitgen.quantize.per_token_group(tokens.x)
        return partial(
            ready,
            tokens,
            [partial(jitgen.grouped_gemm, a, each, a_scale, b_scale) for each in b],
            tokens.product(FP8, partial(_by_block, a, a_scale), values),
            b[0].nbytes + b_scale.nbytes + a.nbytes + a_scale.nbytes,
        )


class Prepacked(Own):
    """
    jitgen's kernels for prepacked weights of a format.

    A kind of activations says how they are converted from bfloat16, which values they represent,
    and which types they have in the problem. Sides of one format and kind share a reference.
    """

    note = ""

    def __init__(
        self,
        name: str,
        layout: BLayout,
        kind: Kind,
        form: PrepackedFormat = PrepackedFormat.MXFP4,
    ) -> None:
        self.name = name
        self._form, self._layout, self._kind = form, layout, kind
        self.types = {
            "a_dtype": kind.dtype,
            "b_dtype": form.facts.b_dtype,
            "scale_granularity": form.facts.scale_granularity,
            "a_scale_granularity": kind.scales,
            "b_layout": layout,
        }

    def fits(self, case: Case) -> bool:
        """Return whether K is a multiple of the number of values that share a scale."""
        return fits(self._form, case.k)

    def multiply(self, a: Tensor, weights: Any, *scales: Tensor, **options: Any) -> Tensor:
        """Return the product of activations and prepacked weights."""
        return jitgen.grouped_gemm(a, weights, *scales, **options)

    def made(self, weights: Weights, tokens: Tokens) -> Callable[[GroupedGemmConfig], Ready]:
        """
        Return a function that returns the side with a given kernel for its kind of activations.

        Raises:
            Unavailable: K is no multiple of what the format needs.
        """
        found = plain(weights, self._form)
        prepacked = weights.once(
            f"{self._form} {self._layout}", partial(prepacked_copies, found, self._layout)
        )
        kind = self._kind
        a, *scales = kind.quantize(tokens.x)
        exact = partial(kind.values, tokens.x, a, *scales)
        return partial(
            ready,
            tokens,
            [partial(self.multiply, a, each, *scales) for each in prepacked],
            tokens.product(f"{self._form} {kind.product}", exact, prepacked[0].weights),
            found.num_bytes + sum(x.nbytes for x in (a, *scales)),
        )


class Unpacked(Prepacked):
    """
    Prepacked weights that each call unpacks to FP8 before it multiplies them.

    `grouped_gemm` unpacks weights only if that is predicted to be faster; this side always does.
    """

    note = "what is timed unpacks the weights, too"

    def multiply(self, a: Tensor, weights: Any, *scales: Tensor, **options: Any) -> Tensor:
        """Return the product with weights that are unpacked before."""
        (a_scale,) = scales
        b, b_scale = jitgen.quantize.unpack_mxfp4(weights)
        return jitgen.grouped_gemm(a, b, a_scale, b_scale, **options)

    def problem(self, case: Case) -> GroupedGemmProblem:
        """Return the problem of the kernel that multiplies unpacked weights."""
        return unpacked_problem(super().problem(case))

    def beside(self, case: Case, arch: Arch) -> list[Config]:
        """Return the kernel that unpacks the weights."""
        weights = UnpackWeightsProblem(
            groups=case.groups,
            m=case.groups * case.n,
            k=case.k,
            b_layout=self._layout,
        )
        return [jitgen.select(weights, arch).config]


@frozen
class Kind:
    """
    A form of the activations that a kernel takes.

    Attributes:
        dtype: Type of the activations, as in a problem.
        scales: Granularity of their scales.
        quantize: Takes (M, K) bfloat16; returns a, and a_scale if the form has scales.
        values: Returns (M, K) float32 of (M, K) bfloat16 and of what `quantize` returned.
        product: Name of the reference.
    """

    dtype: DType
    scales: ScaleGranularity
    quantize: Callable[[Tensor], tuple[Tensor, ...]]
    values: Callable[..., Tensor]
    product: str


def _by_row(_: Tensor, a: Tensor, a_scale: Tensor) -> Tensor:
    return a.float() * a_scale.unsqueeze(-1)


def _by_block(a: Tensor, a_scale: Tensor) -> Tensor:
    return a.float() * a_scale.repeat_interleave(SCALE_BLOCK, -1)[:, : a.shape[1]]


WIDE = Kind(
    dtype=DType.BF16,
    scales=ScaleGranularity.NONE,
    quantize=lambda x: (x,),
    values=lambda x, *_: x.float(),
    product="bf16",
)
SPLIT = Kind(
    dtype=DType.E4M3X2,
    scales=ScaleGranularity.ROW,
    quantize=split_bf16,
    values=lambda x, *_: x.float(),
    product="bf16",
)
ROW = Kind(
    dtype=DType.E4M3,
    scales=ScaleGranularity.ROW,
    quantize=jitgen.quantize.per_row,
    values=_by_row,
    product="row",
)
BLOCK128 = Kind(
    dtype=DType.E4M3,
    scales=ScaleGranularity.BLOCK128,
    quantize=jitgen.quantize.per_token_group,
    values=lambda _, *operands: _by_block(*operands),
    product="block128",
)

OURS: tuple[Own, ...] = (
    Fp8(),
    Prepacked("e4m3", BLayout.EXACT1, ROW),
    Prepacked("e4m3 folded", BLayout.FOLDED1, ROW),
    Prepacked("e4m3x2", BLayout.EXACT1, SPLIT),
    Prepacked("bf16", BLayout.WIDE1, WIDE),
    Prepacked("e4m3x2 folded", BLayout.FOLDED1, SPLIT),
    Prepacked("e4m3 block128", BLayout.EXACT1, BLOCK128),
    Prepacked("e4m3 block128 folded", BLayout.FOLDED1, BLOCK128),
)
"""FP8 first: the ratios are to it."""

UNPACKED: tuple[Own, ...] = (
    Unpacked("e4m3 unpacked", BLayout.EXACT1, ROW),
    Unpacked("e4m3 folded unpacked", BLayout.FOLDED1, ROW),
)
"""Sides for groups of many rows."""

UNPACKED_ROWS = 256
"""
Rows of a group from which sides with unpacked weights take part: with fewer, unpacking takes longer
than multiplying.
"""


def ours(case: Case) -> tuple[Own, ...]:
    """Return jitgen's own sides of a case."""
    return (*OURS, *(UNPACKED if case.rows_per_group >= UNPACKED_ROWS else ()))


ARCH = Arch.SM_90A
"""The target whose kernels the suite lists."""


def kernels(
    found: Sequence[Case], *, all_of_them: bool = False, more: Sequence[Own] = ()
) -> list[str]:
    """
    Return the names of the kernels that our sides, and those of `more`, launch for some cases: the
    chosen ones, or with `all_of_them` every candidate. Of FP8 it is always the chosen one.
    """
    configs = (
        config
        for case in found
        for side in (*ours(case), *more)
        if side.fits(case)
        for config in (
            *side.kernels(case, ARCH)[: None if all_of_them and side.name != FP8 else 1],
            *side.beside(case, ARCH),
        )
    )
    return list(dict.fromkeys(str(config.name(ARCH)) for config in configs))


def ready(
    tokens: Tokens,
    calls: Sequence[Callable[..., Tensor]],
    expected: Tensor,
    num_bytes: int,
    config: GroupedGemmConfig,
) -> Ready:
    """
    Return the side that makes each of `calls`, one for each copy of the weights, with the kernel
    `config` and a result of its own.
    """
    return tokens.ready(
        calls,
        lambda call, out: partial(call, offs=tokens.offs, out=out, config=config),
        expected,
        num_bytes=num_bytes,
        kernel=str(config.name(default_arch())),
    )


def prepacked_copies(found: Plain, layout: BLayout) -> list[PrepackedWeights]:
    """Return the weights prepacked for a layout, and copies of them for other launches."""
    first = _prepack(found, layout)
    return [first, *(replace(first, values=first.values.clone()) for _ in range(SETS - 1))]


def _prepack(found: Plain, layout: BLayout) -> PrepackedWeights:
    """Return the weights prepacked for a layout."""
    if found.dtype is DType.INT4:
        return prepack_int4(found.codes.view(torch.int32), found.scale, layout=layout)
    if found.factor is not None:
        return prepack_nvfp4(found.codes, found.scale, found.factor, layout=layout)
    prepack = prepack_mxfp4 if found.dtype is DType.E2M1 else prepack_mxfp8
    return prepack(found.codes, found.scale, layout=layout)


def _fp8_weights(weights: Weights) -> tuple[list[Tensor], Tensor]:
    """Return copies of random e4m3 weights without NaN, and block scales from 0.5 to 1.5."""
    groups, n, k = weights.sizes
    device = weights.packed.device
    chance = torch.Generator(device).manual_seed(5)
    blocks = (groups, ceil_div(n, SCALE_BLOCK), ceil_div(k, SCALE_BLOCK))
    scale = torch.rand(blocks, device=device, generator=chance) + 0.5
    return copies(fp8_bits(weights)), scale


def _fp8_values(b: Tensor, b_scale: Tensor) -> Tensor:
    """
    Return the values of FP8 weights with block scales, (G, N, K) float32, computed group by group.
    """
    _, n, k = b.shape
    values = torch.empty(b.shape, device=b.device)
    for value, each, scale in zip(values, b, b_scale, strict=True):
        rows = scale.repeat_interleave(SCALE_BLOCK, 0)[:n]
        torch.mul(each.float(), rows.repeat_interleave(SCALE_BLOCK, 1)[:, :k], out=value)
    return values
