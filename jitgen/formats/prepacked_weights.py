# SPDX-License-Identifier: Apache-2.0
"""Prepacked weights of any format: the object that `grouped_gemm` takes as b."""

from __future__ import annotations

from dataclasses import field, replace

import torch
from torch import Tensor
from torch._C import _functorch
from torch.compiler import is_compiling
from torch.nn import Parameter

from jitgen.config import BLayout
from jitgen.config.prepacked import K_MULTIPLE, PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import e2m1, int4, mxfp8, nvfp4
from jitgen.formats import prepacked_blocks as blocks
from jitgen.formats import prepacked_scales as scales
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

_N_MULTIPLE = 8
"""Columns of a result of bfloat16 that end with 16 bytes."""


@frozen
class PrepackedWeights:
    """
    Weights in the form that Hopper's kernels read; `grouped_gemm` takes this object as b.

    Attributes:
        values: (G, ceil(N / 64), ceil(K / 128), 1088) int32, contiguous: codes and scales. With
            int4_32 and nvfp4 the last size is 1152, with mxfp8 2112.
        factor: (G,) float32: a factor of every result of a group.
        n: N, rows of each matrix; a multiple of 8.
        k: K; a multiple of 16. The last scale of a row may be shared by fewer values than the
            others.
        layout: The layout that they were prepacked for, with its version.
        row_spread: Largest difference of exponents within a row, over all of K, as `spread_of_rows`
            computed it; None: unknown. Up to `jitgen.formats.unpacked.REACH`, whole rows of exact1
            and folded1 are e4m3 times one scale. It is valid as long as the address and autograd's
            version counter of `values` do not change. Only for mxfp4.
        format: How values and scales are stored.

    Raises:
        InputError: The parts do not fit each other, or this version of jitgen does not support the
            layout.
    """

    values: Tensor
    factor: Tensor
    n: int
    k: int
    layout: BLayout
    row_spread: int | None = None
    format: PrepackedFormat = PrepackedFormat.MXFP4
    _kinds: tuple[str, str] = field(init=False, repr=False, compare=False)
    _state: tuple[int, int] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", _format(self.format))
        object.__setattr__(self, "layout", layout_of(self.layout, self.format))
        check_sizes(self.n, self.k)
        groups = self.factor.shape[0] if self.factor.dim() == 1 else 0
        for name, tensor, dtype, shape in (
            ("factor", self.factor, torch.float32, (groups,)),
            (
                "values",
                self.values,
                torch.int32,
                blocks.shape_of(groups, self.n, self.k, self.format),
            ),
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
        kind = f"{groups} {self.n} {self.k} {self.format} {self.layout}"
        object.__setattr__(self, "_kinds", (kind, f"{kind} rows"))
        object.__setattr__(self, "_state", state_of(self.values))

    def __reduce__(self) -> tuple[object, ...]:
        """
        Support `copy` and `pickle`; the version counter belongs to one tensor and is left out.
        """
        parts = (self.values, self.factor, self.n, self.k, self.layout, self.known_spread)
        return _made, (*parts, self.format)

    @property
    def known_spread(self) -> int | None:
        """
        The `row_spread` of the present `values`; None if it is unknown. In a graph of torch.compile
        it is always unknown, because values may change between runs of the graph.
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
        G, N, K, format, layout and `has_near_rows` as one text, which is equal for weights that
        share kernels.
        """
        return self._kinds[self.has_near_rows]

    @property
    def groups(self) -> int:
        """Number of groups G."""
        return self.factor.shape[0]

    @property
    def device(self) -> torch.device:
        """Device of the tensors `values` and `factor`."""
        return self.values.device

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors `values` and `factor`."""
        return self.values.nbytes + self.factor.nbytes

    def to(self, device: str | torch.device) -> PrepackedWeights:
        """Return the same weights on `device`."""
        return self._like(self.values.to(device), self.factor.to(device))

    def part(self, groups: slice) -> PrepackedWeights:
        """
        Return the weights of some groups, in the same memory: a share of experts.

        Raises:
            InputError: `groups` is no slice.
        """
        if not isinstance(groups, slice):
            raise InputError("groups", f"must be a slice, such as slice(0, 8) (got {groups!r})")
        return self._like(self.values[groups], self.factor[groups])

    def _like(self, values: Tensor, factor: Tensor) -> PrepackedWeights:
        return PrepackedWeights(
            values=values,
            factor=factor,
            n=self.n,
            k=self.k,
            layout=self.layout,
            row_spread=self.known_spread,
            format=self.format,
        )

    def with_row_spread(self) -> PrepackedWeights:
        """
        Return the same weights with `row_spread`, computed by `spread_of_rows` if it is unknown.
        Weights of other formats than mxfp4 are returned unchanged.
        """
        if self.known_spread is not None or self.format is not PrepackedFormat.MXFP4:
            return self
        return replace(self, row_spread=spread_of_rows(self.values, self.layout))

    def unpack(self) -> tuple[Tensor, Tensor]:
        """
        Return values and scales in the form of checkpoints.

        Returns:
            packed: Of mxfp4 (G, N, K / 2) uint8, the first of two codes in the low half of a byte;
                of nvfp4 likewise; of int4 (G, N, K / 8) int32, eight values plus 8, the first in
                the lowest bits; of mxfp8 (G, N, K) float8_e4m3fn.
            scale: Of mxfp4 and mxfp8 (G, N, ceil(K / 32)) uint8, UE8M0; of int4 (G, N, S) float32;
                of nvfp4 (G, N, K / 16) float8_e4m3fn, with a global scale that is in `factor`.

        They represent the numbers that kernels compute with: the original ones, except for those
        that are rounded or lost according to `jitgen.formats.prepacked_scales` and
        `jitgen.formats.int4`. Of mxfp4 a block of 32 zeros has scale 0, and one whose scale is a
        NaN has codes of zero.
        """
        found = [self._unpacked(group) for group in range(self.groups)]
        packed, scale = (torch.stack(each) for each in zip(*found, strict=True))
        return packed, scale

    def _unpacked(self, group: int) -> tuple[Tensor, Tensor]:
        """Return the values and scales of one group, as `unpack` does."""
        each, facts = self.values[group], self.format.facts
        words, factor = blocks.scale_words(each, facts.value_words), self.factor[group]
        part = slice(self.n), slice(facts.scales_of(self.k))
        if self.format is PrepackedFormat.MXFP8:
            bits = mxfp8.separated(each[..., : facts.value_words], self.layout)
            values = bits[: self.n, : self.k].contiguous().view(torch.float8_e4m3fn)
            return values, mxfp8.restored(words, factor, self.layout)[part]
        codes = blocks.separated(each[..., : blocks.VALUE_WORDS], self.layout, facts.b_dtype)
        is_zero = (blocks.runs(codes, facts.values) & 7).amax(-1)[part] == 0
        codes = codes[: self.n, : self.k]
        if self.format is PrepackedFormat.NVFP4:
            return e2m1.paired(codes), nvfp4.restored(words)[part]
        if self.format is not PrepackedFormat.MXFP4:
            values = int4.from_codes(codes, self.layout)
            found = int4.restored(words, factor, self.layout, self.format)
            return int4.packed_of(values), found[part]
        found = scales.restored(words, factor, self.layout)[part]
        return e2m1.paired(codes), found.masked_fill(is_zero & (found != scales.NAN), 0)

    def weights(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """
        Return the numbers that kernels compute with, (G, N, K) of `dtype`.

        Raises:
            InputError: `dtype` is no torch.dtype.
        """
        if not isinstance(dtype, torch.dtype):
            raise InputError("dtype", f"must be a torch.dtype (got {dtype!r})")
        packed, scale = self.unpack()
        size = self.format.facts.values
        if self.format is PrepackedFormat.MXFP8:
            return mxfp8.numbers_of(packed, scale).to(dtype)
        if self.format is PrepackedFormat.NVFP4:
            overall = nvfp4.global_scale_of(self.factor.double(), self.layout)[:, None, None]
            repeated = (scale.double() * overall).repeat_interleave(size, -1)[..., : self.k]
            return (e2m1.unpack(packed, torch.float64) * repeated).to(dtype)
        if self.format is not PrepackedFormat.MXFP4:
            values = int4.values_of(packed)
            return int4.numbers_of(values, scale, self.layout, self.format).to(dtype)
        factor = torch.exp2(scale.double() - 127).masked_fill(scale == scales.NAN, torch.nan)
        repeated = factor.repeat_interleave(size, -1)[..., : self.k]
        return (e2m1.unpack(packed, torch.float64) * repeated).to(dtype)


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
    values: Tensor,
    factor: Tensor,
    n: int,
    k: int,
    layout: BLayout,
    row_spread: int | None,
    form: PrepackedFormat = PrepackedFormat.MXFP4,  # older pickles have no other
) -> PrepackedWeights:
    return PrepackedWeights(
        values=values,
        factor=factor,
        n=n,
        k=k,
        layout=layout,
        row_spread=row_spread,
        format=form,
    )


def spread_of_rows(values: Tensor, layout: BLayout) -> int:
    """
    Return the largest difference of exponents within a row, over all of K, all rows and all groups.
    It waits for the device.

    Args:
        values: As `PrepackedWeights` of mxfp4 has them.
        layout: Layout that they were prepacked for.
    """
    found = values.new_zeros(())
    for each in values:
        codes = blocks.separated(each[..., : blocks.VALUE_WORDS], layout)
        found = found.maximum(scales.row_spread(codes, blocks.scale_words(each), layout))
    return int(found)


def layout_of(layout: str, form: PrepackedFormat = PrepackedFormat.MXFP4) -> BLayout:
    """
    Return a layout that weights of a format may be prepacked as.

    Raises:
        InputError: `layout` is not a layout of the format.
    """
    allowed = form.facts.partials
    if layout not in allowed:
        raise InputError(
            "layout",
            f"must be one of {', '.join(allowed)}, which this jitgen reads; prepack the weights "
            f"again (got {layout!r})",
        )
    return BLayout(layout)


def _format(form: str) -> PrepackedFormat:
    if form not in tuple(PrepackedFormat):
        raise InputError(
            "format", f"must be one of {', '.join(PrepackedFormat)} (got {shown(form)})"
        )
    return PrepackedFormat(form)


def check_sizes(n: int, k: int) -> None:
    """
    Require sizes of matrices that can be prepacked.

    Raises:
        InputError: N or K is not a multiple of the required number.
    """
    for name, size, multiple in (("N", n, _N_MULTIPLE), ("K", k, K_MULTIPLE)):
        if type(size) is not int or size < 1 or size % multiple:
            raise InputError(name.lower(), f"{name} must be a multiple of {multiple} (got {size})")
