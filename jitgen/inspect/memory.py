# SPDX-License-Identifier: Apache-2.0
"""
The maps of shared and tensor memory, derived from the generated source.

A kernel's shared memory is one struct, whose fields have types, lengths and alignments given by
constants of the same file. Their values are computed here from the text with Python's rules; the
source is not run. If an expression is no arithmetic with such constants, there is no map.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping

from jitgen.support.frozen import frozen

_BITS = {
    "Float8E4M3FN": 8,
    "Float8E8M0FNU": 8,
    "Float4E2M1FN": 4,
    "BFloat16": 16,
    "Float16": 16,
    "Float32": 32,
    "Int16": 16,
    "Int32": 32,
    "Int64": 64,
    "Uint8": 8,
    "Uint32": 32,
    "Boolean": 8,
}
_OPERATORS: dict[type, Callable[[object, object], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., object]] = {"min": min, "max": max}
_STRUCT = "SharedStorage"


class _Unknown(Exception):
    """An expression that is no arithmetic with constants of the file."""


@frozen
class Region:
    """
    A part of a memory.

    Attributes:
        name: Its name in the source.
        start: Its first byte or column.
        size: Number of bytes or columns; 0 for an empty region.
        detail: Its element type and length.
    """

    name: str
    start: int
    size: int
    detail: str = ""

    @property
    def end(self) -> int:
        """Offset of the first byte or column after the region."""
        return self.start + self.size


@frozen
class MemoryMap:
    """
    The regions of a memory, in order.

    Attributes:
        regions: The used regions.
        total: The allocated size.
        limit: The available size; 0 if it is not known.
        unit: ``bytes`` or ``columns``.
    """

    regions: tuple[Region, ...]
    total: int
    limit: int
    unit: str


def shared(source: str, total: int, limit: int) -> MemoryMap | None:
    """
    Return the map of a CTA's shared memory; None if the source has no struct for it.

    Args:
        source: The generated source.
        total: Bytes of shared memory at launch.
        limit: Bytes that a CTA may have.
    """
    tree = ast.parse(source)
    known = constants(tree)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == _STRUCT:
            try:
                regions = tuple(_regions(node, known))
            except _Unknown:
                return None
            end = regions[-1].end if regions else 0
            return MemoryMap(regions=regions, total=max(total, end), limit=limit, unit="bytes")
    return None


def tensor(source: str, limit: int) -> MemoryMap | None:
    """
    Return the map of a CTA's tensor memory, in columns of 128 lanes x 32 bits; None for kernels
    without tensor memory. Sums come first, in one buffer for each stage, then scale factors if
    there are any.
    """
    known = constants(ast.parse(source))
    columns = _integers(known, "TMEM_COLUMNS", "NUM_ACC_STAGE", "TILE_N")
    if columns is None:
        return None
    total, stages, width = columns
    regions = [
        Region(name=f"sums {stage}", start=stage * width, size=width, detail="float32")
        for stage in range(stages)
    ]
    if (atoms := _integers(known, "ATOM_COLUMNS", "ATOMS", "BLOCKS_N")) is not None:
        each, along_k, blocks = atoms
        for name, count in (("scales of a", 1), ("scales of b", blocks)):
            size, start = each * along_k * count, regions[-1].end
            detail = f"atoms of {each} columns"
            regions.append(Region(name=name, start=start, size=size, detail=detail))
    return MemoryMap(regions=tuple(regions), total=total, limit=limit, unit="columns")


def _integers(known: Mapping[str, object], *names: str) -> list[int] | None:
    """Return the values of constants; None if one of them is no integer."""
    found = [each for name in names if isinstance(each := known.get(name), int)]
    return found if len(found) == len(names) else None


def constants(tree: ast.Module) -> dict[str, object]:
    """Return the constants of a file by name: integers and booleans, and types as `_Type`."""
    known: dict[str, object] = {name: _Type(name=name, width=bits) for name, bits in _BITS.items()}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                known[node.targets[0].id] = _value(node.value, known)
            except _Unknown:
                continue
    return known


@frozen
class _Type:
    """An element type; generated sources use its ``width``."""

    name: str
    width: int


def _regions(struct: ast.ClassDef, known: Mapping[str, object]) -> Iterator[Region]:
    position = 0
    for node in struct.body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        kind, count, alignment = _field(node.annotation, known)
        each = kind.width / 8
        start = -(-position // alignment) * alignment
        size = int(each * count)
        detail = f"{count:,} x {kind.name}" if count != 1 else kind.name
        yield Region(name=node.target.id, start=start, size=size, detail=detail)
        position = start + size


def _field(node: ast.expr, known: Mapping[str, object]) -> tuple[_Type, int, int]:
    """Return element type, count and alignment in bytes of a field."""
    match _called(node):
        case "Align", [inner, boundary]:
            kind, count, own = _field(inner, known)
            return kind, count, max(own, _integer(boundary, known))
        case "MemRange", [of, length]:
            kind = _of_type(of, known)
            return kind, _integer(length, known), max(1, kind.width // 8)
    kind = _of_type(node, known)
    return kind, 1, max(1, kind.width // 8)


def _called(node: ast.expr) -> tuple[str, list[ast.expr]]:
    """Return the name and the parts of ``cute.struct.Name[part, part]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        inner = node.slice
        return node.value.attr, list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
    return "", []


def _of_type(node: ast.expr, known: Mapping[str, object]) -> _Type:
    found = _value(node, known)
    if not isinstance(found, _Type):
        raise _Unknown
    return found


def _integer(node: ast.expr, known: Mapping[str, object]) -> int:
    found = _value(node, known)
    if not isinstance(found, int):
        raise _Unknown
    return found


def _value(node: ast.expr, known: Mapping[str, object]) -> object:
    """Return the value of an expression; raises _Unknown if it is no arithmetic."""
    match node:
        case ast.Constant(value=bool() | int() as value):
            return value
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.Attribute(value=ast.Name(id="cutlass"), attr=name) if name in _BITS:
            return known[name]
        case ast.Attribute(value=inner, attr="width"):
            return _of_type(inner, known).width
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _applied(_OPERATORS[type(op)], _integer(left, known), _integer(right, known))
        case ast.Call(func=ast.Name(id=name), args=given) if name in _CALLS and given:
            return _CALLS[name](*(_integer(each, known) for each in given))
    raise _Unknown


def _applied(function: Callable[[object, object], object], left: int, right: int) -> object:
    try:
        return function(left, right)
    except ZeroDivisionError:
        raise _Unknown from None
