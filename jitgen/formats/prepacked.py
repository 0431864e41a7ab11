# SPDX-License-Identifier: Apache-2.0
"""
MXFP4 weights prepacked for Hopper: reordered once, when they are loaded.

Hopper has no tensor cores for e2m1, so its kernels decode weights in registers, and read them in an
order made for that. There are three layouts, of 4.25 bits a weight each; they differ in how scales
are applied. None depends on tiles or sizes: weights are prepacked once for all kernels of a layout.

=============  ================================  ==================================================
layout         activations                       scales
=============  ================================  ==================================================
``exact1``     e4m3 (row, block128), e4m3x2      multiply sums of 32 along K: exact whatever they
                                                 are
``folded1``    e4m3 (row, block128), e4m3x2      become part of e4m3 values, sums of 128 are
                                                 multiplied: exact up to a spread of 11 within 128
                                                 of K (see `spread`), faster from 32 rows a group on
``wide1``      bfloat16                          become part of bfloat16 values: exact
=============  ================================  ==================================================

`jitgen.formats.prepacked_blocks` describes the positions of the bits;
`jitgen.formats.prepacked_scales` how scales are stored, which precision is lost far below the
largest one, and how a NaN is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch._C import _functorch
from torch.compiler import is_compiling
from torch.nn import Parameter
from torch.nn.functional import pad

from jitgen.config import BLayout
from jitgen.errors import InputError
from jitgen.formats import atoms, e2m1, e4m3, mx32
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats import prepacked_scales as scales
from jitgen.formats.mx32 import VALUES, Rounding
from jitgen.formats.prepacked_scales import spread
from jitgen.support.frozen import frozen
from jitgen.support.moved import renamed

PrepackedLayout = Literal["exact1", "folded1", "wide1", "auto"]

_N_MULTIPLE = 8
"""Columns of a result of bfloat16 that end with 16 bytes."""

_LAYOUTS = tuple(layout for layout in BLayout if layout.is_prepacked)


@frozen
class PrepackedWeights:
    """
    MXFP4 weights as Hopper's kernels read them: what `grouped_gemm` takes for b.

    Attributes:
        values: (G, ceil(N / 64), ceil(K / 128), 1088) int32, contiguous: codes and scales.
        factor: (G,) float32: what every result of a group is multiplied with.
        n: N, rows of each matrix; a multiple of 8.
        k: K; a multiple of 32.
        layout: The layout that they were prepacked for, with its version.
        row_spread: Largest difference of exponents within a row, over all of K, as `spread_of_rows`
            found it in `values`; None: unknown. Up to `jitgen.formats.unpacked.REACH` whole rows of
            exact1 and folded1 are e4m3 times one scale. It counts as long as `values` lie where
            they lay and autograd's version counter stands still: rows that are written later may be
            others.

    Raises:
        InputError: The parts do not fit each other, or the layout is none that this jitgen reads.
    """

    values: Tensor
    factor: Tensor
    n: int
    k: int
    layout: BLayout
    row_spread: int | None = None
    _kinds: tuple[str, str] = field(init=False, repr=False, compare=False)
    _state: tuple[int, int] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", _layout(self.layout))
        _check_sizes(self.n, self.k)
        groups = self.factor.shape[0] if self.factor.dim() == 1 else 0
        for name, tensor, dtype, shape in (
            ("factor", self.factor, torch.float32, (groups,)),
            ("values", self.values, torch.int32, blocks.shape_of(groups, self.n, self.k)),
        ):
            if tensor.dtype is not dtype or tuple(tensor.shape) != shape or not groups:
                raise InputError(
                    name,
                    f"must be {dtype} of shape {shape} for {groups} groups of N = {self.n} and "
                    f"K = {self.k} (got {tensor.dtype} of {tuple(tensor.shape)})",
                )
            if not tensor.is_contiguous():
                raise InputError(name, f"must be contiguous (got strides {tensor.stride()})")
        if self.values.device != self.factor.device:
            raise InputError(
                "factor",
                f"must be on {self.values.device}, as values are (got {self.factor.device})",
            )
        if self.row_spread is not None and self.row_spread not in range(scales.NAN):
            raise InputError(
                "row_spread",
                f"must be None or from 0 to {scales.NAN - 1} (got {self.row_spread!r})",
            )
        kind = f"{groups} {self.n} {self.k} {self.layout}"
        object.__setattr__(self, "_kinds", (kind, f"{kind} rows"))
        object.__setattr__(self, "_state", state_of(self.values))

    def __reduce__(self) -> tuple[object, ...]:
        """
        Support `copy` and `pickle`; the version counter belongs to one tensor and is left out.
        """
        parts = (self.values, self.factor, self.n, self.k, self.layout, self.known_spread)
        return _made, parts

    @property
    def known_spread(self) -> int | None:
        """
        The `row_spread` of the present `values`; None if it is not known. Within a graph of
        torch.compile it is unknown, because the graph outlives the values.
        """
        state = self._state
        if state is None or is_compiling() or state != state_of(self.values):
            return None
        return self.row_spread

    @property
    def has_near_rows(self) -> bool:
        """Whether each row is known to be e4m3 times one scale, exactly."""
        if self.row_spread is None or self.layout is BLayout.WIDE1:
            return False
        spread_now = self.known_spread
        return spread_now is not None and spread_now <= scales.ROW_REACH

    @property
    def kind(self) -> str:
        """
        G, N, K, layout and whether rows are near, as one text: equal for weights that share
        kernels.
        """
        return self._kinds[self.has_near_rows]

    @property
    def groups(self) -> int:
        """Number of groups G."""
        return self.factor.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.values.device

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return self.values.nbytes + self.factor.nbytes

    def to(self, device: str | torch.device) -> PrepackedWeights:
        """Return the same weights on `device`."""
        return self._like(self.values.to(device), self.factor.to(device))

    def part(self, groups: slice) -> PrepackedWeights:
        """Return the weights of some groups, in the same memory: a share of experts."""
        return self._like(self.values[groups], self.factor[groups])

    def _like(self, values: Tensor, factor: Tensor) -> PrepackedWeights:
        return PrepackedWeights(
            values=values,
            factor=factor,
            n=self.n,
            k=self.k,
            layout=self.layout,
            row_spread=self.known_spread,
        )

    def with_row_spread(self) -> PrepackedWeights:
        """
        Return the same weights with `row_spread`, computed by `spread_of_rows` if it is unknown.
        """
        if self.known_spread is not None:
            return self
        return replace(self, row_spread=spread_of_rows(self.values, self.layout))

    def unpack(self) -> tuple[Tensor, Tensor]:
        """
        Return codes and scales as checkpoints have them.

        Returns:
            packed: (G, N, K / 2) uint8, the first of two codes in the low half of a byte.
            scale: (G, N, K / 32) uint8, UE8M0.

        They represent the numbers that kernels compute with: the original ones, except for those
        that are rounded or lost according to `jitgen.formats.prepacked_scales`. A block of 32 zeros
        has scale 0, and one under a NaN has codes of zero.
        """
        packed = self.values.new_empty((self.groups, self.n, self.k // 2), dtype=torch.uint8)
        scale = packed.new_empty((self.groups, self.n, self.k // VALUES))
        for group in range(self.groups):
            each = self.values[group]
            codes = blocks.separated(each[..., : blocks.VALUE_WORDS], self.layout)
            found = scales.restored(blocks.scale_words(each), self.factor[group], self.layout)
            is_zero = (blocks.runs(codes, VALUES) & 7).amax(-1) == 0
            found = found.masked_fill(is_zero & (found != scales.NAN), 0)
            packed[group] = e2m1.paired(codes)[: self.n, : self.k // 2]
            scale[group] = found[: self.n, : self.k // VALUES]
        return packed, scale

    def weights(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the numbers that kernels compute with, (G, N, K) of `dtype`."""
        packed, scale = self.unpack()
        exponent = scale.double() - 127
        factor = torch.exp2(exponent).masked_fill(scale == scales.NAN, torch.nan)
        return (e2m1.unpack(packed, torch.float64) * factor.repeat_interleave(VALUES, -1)).to(dtype)


def state_of(tensor: Tensor) -> tuple[int, int] | None:
    """
    Return a state that changes when the values of a tensor do: its address, which ``.data =``
    changes, and autograd's version counter, which every other write increments. None if there is no
    such state: for tensors of inference mode, for fake tensors, and while torch.compile traces.
    """
    if is_compiling() or type(tensor) not in (Tensor, Parameter) or tensor.is_inference():
        return None
    if _functorch.is_functorch_wrapped_tensor(tensor):
        return None
    return tensor.data_ptr(), tensor._version


def _made(  # the fields that `PrepackedWeights.__reduce__` keeps
    values: Tensor, factor: Tensor, n: int, k: int, layout: BLayout, row_spread: int | None
) -> PrepackedWeights:
    return PrepackedWeights(
        values=values, factor=factor, n=n, k=k, layout=layout, row_spread=row_spread
    )


def prepack_mxfp4(
    packed: Tensor, scale: Tensor, *, layout: PrepackedLayout | BLayout = BLayout.EXACT1
) -> PrepackedWeights:
    """
    Prepack MXFP4 weights for Hopper's kernels, and the cpu's.

    Works group by group on the device of `packed`; besides the result it needs memory for one
    group's values at a time.

    Args:
        packed: (G, N, K / 2) uint8 or float4_e2m1fn_x2, the first of two codes in the low half of a
            byte, as in the checkpoints of gpt-oss (blocks flattened) and of others. N is a multiple
            of 8, K of 32.
        scale: (G, N, K / 32) uint8 or float8_e8m0fnu, row by row. Scales in atoms become such by
            `jitgen.quantize.from_atoms`.
        layout: ``exact1``, ``folded1``, ``wide1``; or ``auto``: ``folded1`` where that is exact for
            all of these weights, else ``exact1``. ``wide1`` is for bfloat16 activations.

    Raises:
        InputError: An argument is not of this kind.
    """
    _check(packed, scale)
    groups, n, _ = packed.shape
    k = packed.shape[-1] * 2
    if layout == "auto":
        is_near = all(int(_spread(packed, scale, i).amax()) <= scales.REACH for i in range(groups))
        layout = BLayout.FOLDED1 if is_near else BLayout.EXACT1
    parts = (
        (e2m1.as_bytes(packed[group]), scale[group].view(torch.uint8)) for group in range(groups)
    )
    return _prepacked(parts, (groups, n, k), packed.device, _layout(layout))


def prepack_mxfp4_from(
    w: Tensor, *, layout: PrepackedLayout | BLayout = BLayout.EXACT1, rounding: Rounding = "up"
) -> PrepackedWeights:
    """
    Quantise weights to MXFP4 and prepack them.

    Args:
        w: (G, N, K), any float type; N a multiple of 8, K of 32.
        layout: As for `prepack_mxfp4`, but for ``auto``.
        rounding: As for `jitgen.quantize.mxfp4`.

    Raises:
        InputError: An argument is not of this kind.
    """
    e4m3.check(w, "w", ranks=(3,))
    groups, n, k = w.shape
    _check_sizes(n, k)

    def parts() -> Iterator[tuple[Tensor, Tensor]]:
        for each in w:
            packed, scale = mx32.mxfp4(each, rounding=rounding)
            yield packed, atoms.plain(scale, k // VALUES)[:n].view(torch.uint8)

    return _prepacked(parts(), (groups, n, k), w.device, _layout(layout))


def _prepacked(
    parts: Iterator[tuple[Tensor, Tensor]],
    sizes: tuple[int, int, int],
    device: torch.device,
    layout: BLayout,
) -> PrepackedWeights:
    """Prepack group after group: packed codes and scales of each."""
    groups, n, k = sizes
    shape = blocks.shape_of(*sizes)
    values = torch.empty(shape, dtype=torch.int32, device=device)
    factor = torch.empty(groups, device=device)
    spread_here = torch.zeros((), dtype=torch.int32, device=device)
    spare_n, spare_k = shape[1] * blocks.ROWS - n, shape[2] * blocks.DEPTH - k
    for group, (packed, scale) in enumerate(parts):
        codes = pad(e2m1.single(packed), (0, spare_k, 0, spare_n))
        kept = scales.kept(codes, pad(scale, (0, spare_k // VALUES, 0, spare_n)), layout)
        blocks.blocked(blocks.joined(kept.codes, layout), kept.words, values[group])
        factor[group] = kept.factor
        spread_here = spread_here.maximum(scales.row_spread(kept.codes, kept.words, layout))
    return PrepackedWeights(
        values=values, factor=factor, n=n, k=k, layout=layout, row_spread=int(spread_here)
    )


def spread_of_rows(values: Tensor, layout: BLayout) -> int:
    """
    Return the largest difference of exponents within a row, over all of K, all rows and all groups.
    It waits for the device.

    Args:
        values: As `PrepackedWeights` has them.
        layout: Layout that they were prepacked for.
    """
    found = values.new_zeros(())
    for each in values:
        codes = blocks.separated(each[..., : blocks.VALUE_WORDS], layout)
        found = found.maximum(scales.row_spread(codes, blocks.scale_words(each), layout))
    return int(found)


def _spread(packed: Tensor, scale: Tensor, group: int) -> Tensor:
    return spread(packed[group : group + 1], scale[group : group + 1])


def _layout(layout: str) -> BLayout:
    try:
        found = BLayout(layout)
    except ValueError:
        found = BLayout.PLAIN
    if found not in _LAYOUTS:
        raise InputError(
            "layout",
            f"must be one of {', '.join(_LAYOUTS)}, which this jitgen reads; prepack the weights "
            f"again (got {layout!r})",
        )
    return found


def _check_sizes(n: int, k: int) -> None:
    for name, size, multiple in (("N", n, _N_MULTIPLE), ("K", k, VALUES)):
        if type(size) is not int or size < 1 or size % multiple:
            raise InputError(name.lower(), f"{name} must be a multiple of {multiple} (got {size})")


def _check(packed: Tensor, scale: Tensor) -> None:
    _require(packed, "packed", e2m1.is_packed, "uint8 or float4_e2m1fn_x2, (G, N, K / 2)")
    _require(scale, "scale", _is_scale, "uint8 or float8_e8m0fnu, (G, N, K / 32)")
    groups, n, half = packed.shape
    if not groups:
        raise InputError("packed", "must have at least one group (got none)")
    _check_sizes(n, 2 * half)
    wanted = (groups, n, 2 * half // VALUES)
    if tuple(scale.shape) != wanted:
        raise InputError(
            "scale",
            f"must have shape {wanted}, a byte for each 32 of packed, whose shape is "
            f"{tuple(packed.shape)} (got {tuple(scale.shape)})",
        )
    if scale.device != packed.device:
        raise InputError("scale", f"must be on {packed.device}, as packed is (got {scale.device})")


def _is_scale(x: Tensor) -> bool:
    return x.dtype in {torch.uint8, torch.float8_e8m0fnu}


def _require(x: object, name: str, is_right: Callable[[Tensor], bool], what: str) -> None:
    if not isinstance(x, Tensor):
        raise InputError(name, f"must be a torch tensor (got {type(x).__name__})")
    if x.dim() != 3 or not is_right(x):
        raise InputError(name, f"must be {what} (got {x.dtype} of shape {tuple(x.shape)})")


__all__ = [
    "PrepackedLayout",
    "PrepackedWeights",
    "prepack_mxfp4",
    "prepack_mxfp4_from",
    "spread",
    "spread_of_rows",
]


if not TYPE_CHECKING:  # a type checker has the new names alone

    def __getattr__(name: str) -> object:
        return renamed(__name__, name)
