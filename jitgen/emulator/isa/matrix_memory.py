# SPDX-License-Identifier: Apache-2.0
"""
Matrices between shared memory and the registers of a warp: ``ldmatrix`` and ``stmatrix``.

A matrix has 8 rows of 16 bytes, each anywhere in shared memory: lane 8 i + r has the address of
row r of matrix i. Lane l gets in its i-th register, of matrix i, the bytes 4 (l % 4) .. + 3 of row
l / 4, or with ``.trans`` the 16-bit elements l / 4 of the rows 2 (l % 4) and 2 (l % 4) + 1.

Rows of 4-bit or 6-bit elements (``.b4x16_p64``, ``.b6x16_p32``) are 16 elements packed, and
padding; each element becomes a byte, in its low bits.

PTX ISA, sections "ldmatrix" and "stmatrix".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jitgen.emulator.arrays import PerThread, Vector
from jitgen.emulator.isa.addressing import GENERIC, SHARED, space_of
from jitgen.emulator.machine.fragment import WARP, Fragment
from jitgen.emulator.machine.lanes import MANY
from jitgen.emulator.program.builder import Builder
from jitgen.emulator.program.instruction import Instruction
from jitgen.emulator.program.table import Unsupported, emits

ROWS = 8
ROW_BYTES = 16

_SHAPES = {("m8n8", "b16"): 16, ("m8n16", "b4x16_p64"): 4, ("m8n16", "b6x16_p32"): 6}
"""Bits of an element, by shape and type."""

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


@dataclass(frozen=True, slots=True)
class Matrices:
    """
    The modifiers of ldmatrix and stmatrix.

    Attributes:
        count: Matrices: 1, 2 or 4.
        bits: Bits of an element in memory: 16, 6 or 4.
        is_transposed: Whether lanes get columns instead of rows.
    """

    count: int
    bits: int
    is_transposed: bool


def _matrices_of(instruction: Instruction) -> Matrices:
    parts = instruction.parts
    shape = next((part for part in parts if part in {"m8n8", "m8n16"}), "other")
    kind = next((part for part in parts if part[:2] in {"b4", "b6"}), parts[-1])
    bits = _SHAPES.get((shape, kind), 0)
    is_transposed = instruction.has("trans")
    if not bits or space_of(instruction) not in {SHARED, GENERIC} or (is_transposed and bits < 16):
        raise Unsupported(f"shape of {instruction.op}")
    count = next((_COUNTS[part] for part in parts if part in _COUNTS), 1)
    return Matrices(count, bits, is_transposed)


@emits("ldmatrix", whole_warp=True)
def emit_load(builder: Builder, instruction: Instruction) -> None:
    """Translate ``ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {d, ...}, [address]``."""
    matrices = _matrices_of(instruction)
    names = builder.names(instruction.operands[0])
    if len(names) != matrices.count:
        raise Unsupported(f"{len(names)} registers")
    loaded = builder.temporary()
    address = builder.address(instruction.operands[1])
    call = builder.call(
        load_matrices, builder.mask(instruction), address, builder.constant(matrices, "matrices")
    )
    builder.do(f"{loaded} = {call}")
    for i, name in enumerate(names):
        builder.define(name, f"{loaded}[{i}]", "b32", instruction)


def load_matrices(
    f: Fragment, at: int, mask: NDArray[np.bool_] | None, addresses: PerThread, matrices: Matrices
) -> NDArray[np.uint32]:
    """
    Return registers, uint32 [count, n], of whole warps.

    Raises:
        MachineFault: A row is out of bounds or not aligned to 16 bytes; a warp is not whole, or
            its lanes do not agree whether they execute the instruction.
    """
    whole = _whole_warps(f, at, mask)
    loaded = np.zeros((f.n // WARP, matrices.count, WARP), np.uint32)
    if len(whole):
        threads = _row_threads(whole, matrices.count)
        offsets = f.cta.shared.offsets(f, at, f.spread(addresses)[threads], ROW_BYTES)
        size = 2 * matrices.bits if matrices.bits < 16 else ROW_BYTES
        width = 4 if size % 8 else size
        pieces = (offsets[:, None] + np.arange(0, size, width)).reshape(-1)
        repeated = np.repeat(threads, size // width)
        f.cluster.clocks.lanes.wait(f.cluster.clocks.vector, f.agents)
        rows = f.cta.shared.generic_read(f, at, pieces, width, repeated, lanes=MANY)
        shape = (len(whole), matrices.count, ROWS, size)
        loaded[whole] = _to_lanes(_expanded(rows.reshape(shape), matrices.bits), matrices)
    return loaded.transpose(1, 0, 2).reshape(matrices.count, f.n)


def _expanded(rows: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return rows [..., 16] whose elements of less than 8 bits are bytes."""
    if bits >= 8:
        return rows
    flags = np.unpackbits(rows, axis=-1, bitorder="little").reshape(*rows.shape[:-1], 16, bits)
    return np.packbits(flags, axis=-1, bitorder="little")[..., 0]


def _to_lanes(rows: NDArray[np.uint8], matrices: Matrices) -> NDArray[np.uint32]:
    """Return the registers of lanes [..., 32] for the rows of matrices [..., 8, 16]."""
    if matrices.is_transposed:
        rows = np.swapaxes(rows.view(np.uint16), -1, -2).copy().view(np.uint8)
    return rows.view(np.uint32).reshape(*rows.shape[:-2], WARP)


@emits("stmatrix", whole_warp=True)
def emit_store(builder: Builder, instruction: Instruction) -> None:
    """Translate ``stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [address], {a, ...}``."""
    matrices = _matrices_of(instruction)
    address, source = instruction.operands
    values = builder.values(source, "b32")
    if len(values) != matrices.count or matrices.bits != 16:
        raise Unsupported(f"{len(values)} registers")
    call = builder.call(
        store_matrices,
        builder.mask(instruction),
        builder.address(address),
        builder.constant(matrices, "matrices"),
        f"({', '.join(values)},)",
    )
    builder.do(call)


def store_matrices(
    f: Fragment,
    at: int,
    mask: NDArray[np.bool_] | None,
    addresses: PerThread,
    matrices: Matrices,
    values: Vector,
) -> None:
    """Store registers, a tuple of uint32 [n], of whole warps; see `load_matrices`."""
    whole = _whole_warps(f, at, mask)
    if not len(whole):
        return
    threads = _row_threads(whole, matrices.count)
    offsets = f.cta.shared.offsets(f, at, f.spread(addresses)[threads], ROW_BYTES)
    lanes = np.stack([f.spread(value).reshape(-1, WARP)[whole] for value in values], axis=1)
    rows = lanes.view(np.uint8).reshape(len(whole), matrices.count, ROWS, ROW_BYTES)
    if matrices.is_transposed:
        rows = np.swapaxes(rows.view(np.uint16), -1, -2).copy().view(np.uint8)
    f.cluster.clocks.lanes.wait(f.cluster.clocks.vector, f.agents)
    data = rows.reshape(-1, ROW_BYTES)
    f.cta.shared.generic_write(f, at, offsets, data, threads, lanes=MANY)


def _whole_warps(f: Fragment, at: int, mask: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Return which of the fragment's warps execute the instruction, as indices."""
    if f.n != WARP * len(f.warps):
        f.fault(at, "a warp with threads that have exited executes a matrix instruction")
    if mask is None:
        return np.arange(len(f.warps))
    lanes = mask.reshape(-1, WARP)
    if (lanes.any(axis=1) != lanes.all(axis=1)).any():
        f.fault(at, "the lanes of a warp do not agree about a matrix instruction")
    return np.flatnonzero(lanes[:, 0])


def _row_threads(whole: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the threads whose addresses count, warp by warp."""
    return (whole[:, None] * WARP + np.arange(ROWS * count)).reshape(-1)
