# SPDX-License-Identifier: Apache-2.0
"""Memory for one matrix of every expert. Several threads fill it, each for a different expert."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from jitgen.config import BLayout, DType, ScaleGranularity
from jitgen.config.config import SCALE_BLOCK
from jitgen.config.prepacked import PrepackedFormat
from jitgen.errors import InputError
from jitgen.formats import int4, prepacked_blocks
from jitgen.formats.prepacked import PrepackedWeights, prepack_mxfp4
from jitgen.formats.prepacked_int4 import prepack_int4
from jitgen.formats.prepacked_mxfp8 import prepack_mxfp8
from jitgen.formats.prepacked_nvfp4 import prepack_nvfp4
from jitgen.formats.protocol import ceil_div
from jitgen.layer.checkpoints.encodings import Encoding
from jitgen.layer.checkpoints.encodings.protocol import Piece
from jitgen.layer.checkpoints.part import Matrix, Part
from jitgen.layer.weights import BLOCK128, NONE, ROW, Matrices
from jitgen.ops.call import calling

MOST_BYTES = 2**62
"""
Bound of the bytes of a tensor: no tensor is larger, but an expanded matrix of one value may report
a larger size.
"""


class Cut(NamedTuple):
    """
    A part of a matrix that is read, and its place in the layer.

    Attributes:
        rows: Rows of the checkpoint's matrix that are read.
        columns: Columns of the checkpoint's matrix that are read.
        own_rows: The rows that this rank keeps, a part of `rows`. The others are read only because
            they share a block of scales with these, and become zero.
        own_columns: The columns that this rank keeps, likewise.
        start: Row of the layer's matrix to which the first row goes.
        step: Distance of rows in the layer's matrix: 2 if gates and ups alternate.
    """

    rows: range
    columns: range
    own_rows: range
    own_columns: range
    start: int = 0
    step: int = 1

    @property
    def places(self) -> slice:
        """The rows of the layer's matrix to which its rows go."""
        return slice(self.start, self.start + self.step * len(self.rows), self.step)

    @property
    def lead(self) -> tuple[int, int]:
        """Number of rows, and of columns, that are read before those that this rank keeps."""
        return self.own_rows.start - self.rows.start, self.own_columns.start - self.columns.start


class Destination:
    """
    Memory for values and scales in the encoding of the checkpoint, or for bfloat16 values.

    Args:
        part: Part of the layer that is read.
        first: The first matrix that is read.
        shape: (G, N, K).
    """

    def __init__(self, part: Part, first: Matrix, shape: tuple[int, int, int]) -> None:
        self._part = part
        encoding = part.form.encoding
        name = first.name(encoding.roles[0])
        kernel = NONE if part.dequantize else encoding.kernel
        groups, n, k = shape
        dtype = torch.bfloat16 if kernel == NONE else torch.float8_e4m3fn
        if part.form.is_turned and kernel == NONE:  # which kernels read as it lies
            self._values = empty((groups, k, n), dtype, part, name).transpose(1, 2)
        else:
            self._values = empty(shape, dtype, part, name)
        self._unit = SCALE_BLOCK if kernel == BLOCK128 else 1
        blocks = (groups, ceil_div(n, SCALE_BLOCK), ceil_div(k, SCALE_BLOCK))
        sizes = {BLOCK128: blocks, ROW: (groups, n)}.get(str(kernel))
        self._scale = None if sizes is None else torch.ones(sizes, device=part.device)

    def put(self, place: int, matrix: Matrix, cut: Cut) -> None:
        """Read a part of a matrix into the memory of the expert at `place`."""
        piece = _piece(self._part, matrix, cut)
        into = self._values[place, cut.places]
        if cut.columns.stop - cut.columns.start < into.shape[1]:
            into.zero_()
        into[:, : len(cut.columns)].copy_(piece.values)
        _clear(into, cut)
        if piece.scale is None or self._scale is None:
            return
        if self._scale.dim() == 2:
            self._scale[place, cut.places].copy_(piece.scale)
            return
        height, width = piece.scale.shape
        first = cut.start // self._unit
        self._scale[place, first : first + height, :width].copy_(piece.scale)

    def pad(self, place: int, start: int, stop: int) -> None:
        """Fill rows that the checkpoint does not have with zeros."""
        self._values[place, start:stop].zero_()

    def finish(self, place: int) -> None:
        """Do nothing: an expert is complete when all of its parts were put."""

    def matrices(self) -> tuple[Matrices, Tensor | None]:
        """Return the matrices that were read, with their scales."""
        return self._values, self._scale


class PrepackedDestination:
    """
    Memory for weights that are prepacked, one expert after another. Methods and arguments are those
    of `Destination`; `form` is the prepacked format.
    """

    def __init__(
        self, part: Part, first: Matrix, shape: tuple[int, int, int], form: PrepackedFormat
    ) -> None:
        self._part = part
        self._shape = shape
        self._form = form
        is_wide = part.activation_format in (None, NONE)
        self._layout = BLayout.WIDE1 if is_wide else BLayout.EXACT1
        encoding = part.form.encoding
        name = first.name(encoding.roles[0])
        self._values = empty(prepacked_blocks.shape_of(*shape, form), torch.int32, part, name)
        self._factor = torch.empty(shape[0], device=part.device)
        self._scale_dtype = first.dtype(encoding.roles[1])
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._overall: dict[int, Tensor] = {}
        self._spreads: list[int] = []

    def put(self, place: int, matrix: Matrix, cut: Cut) -> None:
        """Read a part of a matrix, and keep it until `finish` prepacks the expert at `place`."""
        piece = _piece(self._part, matrix, cut)
        codes, scale = self._room(place)
        into = codes[cut.places]
        into[:, : piece.values.shape[1]].copy_(piece.values)
        if self._form.facts.b_dtype is DType.E2M1:
            row, _ = cut.lead
            into[:row] = 0
            into[row + len(cut.own_rows) :] = 0
            into &= _mask(cut, into.shape[1]).to(into.device)
        else:
            _clear(into, cut)
        if piece.scale is not None:
            scale[cut.places, : piece.scale.shape[1]].copy_(piece.scale)
        if piece.overall is not None and self._overall.setdefault(place, piece.overall) != (
            piece.overall
        ):
            name = matrix.name(self._part.form.encoding.roles[2])
            raise InputError(
                "source",
                f"{name} must be that of the other matrix of its product, "
                f"{float(self._overall[place])!r}, for both are multiplied as one (got "
                f"{float(piece.overall)!r}); dequantize=True reads them as bfloat16",
            )

    def _room(self, place: int) -> tuple[Tensor, Tensor]:
        """Return room for the codes and scales of an expert."""
        if place not in self._kept:
            _, n, k = self._shape
            scales = n, k // self._form.facts.values
            of_values = self._form.facts.b_dtype
            size = (n, k // 2 if of_values is DType.E2M1 else k)
            dtype = torch.int8 if of_values is DType.INT4 else torch.uint8
            codes = torch.zeros(size, dtype=dtype, device=self._part.maker)
            is_byte = self._form.facts.scale_granularity is ScaleGranularity.MX32
            of_scales = torch.uint8 if is_byte else self._scale_dtype
            self._kept[place] = codes, codes.new_zeros(scales, dtype=of_scales)
        return self._kept[place]

    def pad(self, place: int, start: int, stop: int) -> None:
        """Do nothing: rows that the checkpoint does not have are zero already."""

    def finish(self, place: int) -> None:
        """Prepack the codes of an expert."""
        codes, scale = self._kept.pop(place)
        if self._form is PrepackedFormat.MXFP4:
            made = prepack_mxfp4(codes[None], scale[None], layout=self._layout)
        elif self._form is PrepackedFormat.MXFP8:
            values = codes.view(torch.float8_e4m3fn)
            made = prepack_mxfp8(values[None], scale[None], layout=self._layout)
        elif self._form is PrepackedFormat.NVFP4:
            overall = self._overall.pop(place).reshape(1).to(codes.device)
            made = prepack_nvfp4(codes[None], scale[None], overall, layout=self._layout)
        else:
            made = prepack_int4(int4.packed_of(codes)[None], scale[None], layout=self._layout)
        self._values[place].copy_(made.values[0])
        self._factor[place].copy_(made.factor[0])
        if made.row_spread is not None:
            self._spreads.append(made.row_spread)

    def matrices(self) -> tuple[Matrices, Tensor | None]:
        """Return the prepacked weights, and None, because they contain their scales."""
        made = PrepackedWeights(
            values=self._values,
            factor=self._factor,
            n=self._shape[1],
            k=self._shape[2],
            layout=self._layout,
            row_spread=max(self._spreads, default=None),
            format=self._form,
        )
        return made, None


def destination(
    part: Part, first: Matrix, shape: tuple[int, int, int]
) -> Destination | PrepackedDestination:
    """Return memory for the matrices of a part, (G, N, K); `first` is the first of them."""
    form = None if part.dequantize else part.form.encoding.prepacked(first)
    if form is None:
        return Destination(part, first, shape)
    return PrepackedDestination(part, first, shape, form)


def _piece(part: Part, matrix: Matrix, cut: Cut) -> Piece:
    encoding: Encoding = part.form.encoding
    if part.dequantize:
        return Piece(encoding.numbers(matrix, cut.rows, cut.columns))
    return encoding.piece(matrix, cut.rows, cut.columns)


def _mask(cut: Cut, width: int) -> Tensor:
    """
    Return a mask of packed codes, (width,) uint8 of two columns each, with ones for columns that
    this rank keeps.
    """
    columns = torch.arange(2 * width)
    first = cut.lead[1]
    counts = ((columns >= first) & (columns < first + len(cut.own_columns))).to(torch.uint8) * 15
    return counts[0::2] | counts[1::2] << 4


def _clear(into: Tensor, cut: Cut) -> None:
    """Set the rows and columns of (n, k) that this rank does not keep to zero."""
    row, column = cut.lead
    into[:row].zero_()
    into[row + len(cut.own_rows) :].zero_()
    into[:, :column].zero_()
    into[:, column + len(cut.own_columns) :].zero_()


def empty(shape: tuple[int, ...], dtype: torch.dtype, part: Part, name: str) -> Tensor:
    """
    Return memory for the matrices of all experts; `name` is the first one, for errors.

    Raises:
        InputError: The size is larger than any machine's memory.
        ResourceError: The device has not enough memory.
    """
    if prod(shape) * dtype.itemsize >= MOST_BYTES:
        raise InputError(
            "source", f"{name} is too large: the matrices of all experts would be {shape} {dtype}"
        )
    with allocating(f"from_checkpoint of {name}"):
        return torch.empty(shape, dtype=dtype, device=part.device)


@contextmanager
def allocating(what: str) -> Iterator[None]:
    """Raise ResourceError if torch runs out of memory."""
    with calling(what):
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # torch's error if the CPU has no memory left
            raise MemoryError(str(error)) from error
