# SPDX-License-Identifier: Apache-2.0
"""
Reads the matrices of every expert into the tensors of a layer, several experts at a time.

The columns of a rank's share may begin or end within a block of scales, or their number may be one
that kernels do not support. Then the rest of these blocks is read, too, and set to zero, and zeros
follow up to the next whole block. Gates and ups of zero give zero, so the results do not change,
and no value is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from jitgen.errors import InputError
from jitgen.layer.checkpoints import scales
from jitgen.layer.checkpoints.destinations import Cut, destination
from jitgen.layer.checkpoints.encodings.protocol import require_shape
from jitgen.layer.checkpoints.family import BIAS
from jitgen.layer.checkpoints.part import Columns, Matrix, Part
from jitgen.layer.weights import BLOCK128, ExpertWeights

_THREADS = 8
"""
Number of experts that are read at the same time. Files are mapped, so threads only wait for the
disk.
"""

Progress = Callable[[int, int], object]
"""
Function that is called with the number of experts that have been read, and the number of all
experts.
"""


def read(part: Part, progress: Progress | None = None) -> ExpertWeights:
    """
    Return the weights of a part.

    Raises:
        InputError: A tensor does not have the form of the layer, or tensors do not fit each other.
        ResourceError: There is no memory for the weights.
        OSError: A file cannot be read.
    """
    reader = _Reader(part)
    experts = part.experts
    reader.fill(0)  # the first one makes room, and finds most that may be wrong
    if progress is not None:
        progress(1, len(experts))
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="checkpoint")
    try:
        for done, _ in enumerate(threads.map(reader.fill, range(1, len(experts))), start=2):
            if progress is not None:
                progress(done, len(experts))
    finally:
        threads.shutdown(cancel_futures=True)
    return reader.weights()


def sizes(part: Part) -> tuple[int, int]:
    """Return H and I of a layer in the checkpoint, for all ranks together."""
    first = part.matrix(part.form.family.down, part.experts[0])
    return part.form.encoding.size(first)


class _Reader:
    """
    The tensors of a layer while experts are read into them.

    Args:
        part: Part of the layer that is read.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._encoding = part.form.encoding
        family = part.form.family
        self._family = family
        gate, down = (
            part.matrix(each, part.experts[0]) for each in (family.gate_up[0], family.down)
        )
        role = self._encoding.roles[0]
        rows, self._hidden = self._encoding.size(gate)
        if rows % family.rows:
            raise InputError(
                "source",
                f"{gate.name(role)} must have a row of each gate and of each up (got {rows})",
            )
        self._dtype = gate.dtype(role)
        self._columns = _columns(part, rows // family.rows, gate, down)
        size, count = self._columns.size, len(part.experts)
        self._between = family.inputs * size
        self._w13 = destination(part, gate, (count, self._between, self._hidden))
        self._w2 = destination(part, down, (count, self._hidden, size))
        self._biases: dict[str, Tensor] = {}
        if family.has_bias:
            for name, width in (("w13_bias", self._between), ("w2_bias", self._hidden)):
                self._biases[name] = torch.zeros((count, width), device=part.device)

    def fill(self, place: int) -> None:
        """Read an expert into its place."""
        part, whole = self._part, self._columns.whole
        expert, family = part.experts[place], part.form.family
        gate_up = [part.matrix(module, expert) for module in family.gate_up]
        down = part.matrix(family.down, expert)
        for matrix in gate_up:
            self._require(matrix, (family.rows * whole, self._hidden))
        self._require(down, (self._hidden, whole))
        for matrix, cut in self._cuts(gate_up):
            self._w13.put(place, matrix, cut)
        for start, stop in self._spare():
            self._w13.pad(place, start, stop)
        all_rows = range(self._hidden)
        columns = self._columns
        self._w2.put(place, down, Cut(all_rows, columns.read, all_rows, columns.own))
        self._w13.finish(place)
        self._w2.finish(place)
        if family.has_bias:
            self._fill_biases(place, gate_up[0], down)

    def _spare(self) -> list[tuple[int, int]]:
        """
        Return the ranges of rows of `w13` that the checkpoint does not have, each as its first row
        and the row after its last.
        """
        read, size = len(self._columns.read), self._columns.size
        if read == size:
            return []
        inputs = self._family.inputs
        if self._part.interleaved:
            return [(inputs * read, inputs * size)]
        return [(number * size + read, (number + 1) * size) for number in range(inputs)]

    def _cuts(self, gate_up: list[Matrix]) -> list[tuple[Matrix, Cut]]:
        """Return which parts of which matrices are read into `w13`."""
        columns, across, turns = self._columns, range(self._hidden), self._part.interleaved
        has_both = self._family.rows > 1
        if has_both and turns:
            rows, own = (_moved(each, by=0, times=2) for each in (columns.read, columns.own))
            return [(gate_up[0], Cut(rows, across, own, across))]
        found = []
        for number in range(self._family.inputs):
            first = number * columns.whole if has_both else 0
            rows, own = (_moved(each, by=first) for each in (columns.read, columns.own))
            start, step = (number, 2) if turns else (number * columns.size, 1)
            cut = Cut(rows, across, own, across, start=start, step=step)
            found.append((gate_up[0 if has_both else number], cut))
        return found

    def _require(self, matrix: Matrix, size: tuple[int, int]) -> None:
        """Require a matrix of this size, of the type of the first matrix, with all its tensors."""
        role = self._encoding.roles[0]
        name, found = matrix.name(role), self._encoding.size(matrix)
        if found != size:
            raise InputError(
                "source",
                f"{name} must have shape {size}, as the others of the layer have it (got "
                f"{matrix.source.shape(name) if self._family.is_fused else found})",
            )
        if matrix.dtype(role) is not self._dtype:
            raise InputError(
                "source",
                f"{name} must be {self._dtype}, as the others of the layer are (got "
                f"{matrix.dtype(role)})",
            )
        self._encoding.check(matrix, size)

    def _fill_biases(self, place: int, gate_up: Matrix, down: Matrix) -> None:
        require_shape(gate_up, BIAS, (self._family.rows * self._columns.whole,))
        require_shape(down, BIAS, (self._hidden,))
        bias = scales.of_bias(gate_up.read(BIAS), gate_up.name(BIAS))
        for _, cut in self._cuts([gate_up]):
            start = cut.start + cut.lead[0]
            into = self._biases["w13_bias"][place, start : start + len(cut.own_rows)]
            into.copy_(bias[cut.own_rows.start : cut.own_rows.stop])
        bias = scales.of_bias(down.read(BIAS), down.name(BIAS))
        if self._part.share.rank == 0:  # ranks add up their results
            self._biases["w2_bias"][place].copy_(bias)

    def weights(self) -> ExpertWeights:
        """Return the weights of all experts, after they were read."""
        w13, w13_scale = self._w13.matrices()
        w2, w2_scale = self._w2.matrices()
        return ExpertWeights(
            w13=w13,
            w2=w2,
            w13_scale=w13_scale,
            w2_scale=w2_scale,
            activation_format=self._part.activation_format,
            **self._biases,
        )


def _columns(part: Part, whole: int, first: Matrix, down: Matrix) -> Columns:
    """Return the columns of an expert that are read."""
    encoding = part.form.encoding
    unit = 1 if part.dequantize else encoding.unit_of(down)
    has_both = part.form.family.rows > 1 and not part.interleaved
    if not part.dequantize and encoding.kernel == BLOCK128 and has_both and whole % unit:
        raise InputError(
            "source",
            f"{first.name(encoding.roles[0])} must have I a multiple of {unit}, for gates and ups "
            f"to have blocks of scales of their own (got {whole}); dequantize=True reads it as "
            "bfloat16",
        )
    # Gates and ups that take turns share a last block that is not whole.
    fills = not (encoding.kernel == BLOCK128 and part.interleaved)
    return Columns.of(whole, part.share, unit, fills=fills)


def _moved(part: range, *, by: int, times: int = 1) -> range:
    return range(times * part.start + by, times * part.stop + by)
