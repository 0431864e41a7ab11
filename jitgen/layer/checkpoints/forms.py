# SPDX-License-Identifier: Apache-2.0
"""Finds the form of a layer: the family of its names, and the encoding of its values."""

from __future__ import annotations

from itertools import pairwise

from jitgen.errors import InputError
from jitgen.layer.checkpoints.encodings import ENCODINGS, Encoding
from jitgen.layer.checkpoints.family import BIAS, EXPERT, FAMILIES, Family, below, known_as
from jitgen.layer.checkpoints.part import Form, Matrix
from jitgen.layer.checkpoints.source import Source
from jitgen.support.text import printable, shown

_VALUES = tuple(dict.fromkeys(("weight", *(encoding.roles[0] for encoding in ENCODINGS))))
_UNUSED = ("input_scale", "input_global_scale", "activation_scale")
"""Roles of static scales of tokens. jitgen does not use them: it computes scales for each call."""

_MOST_SHOWN = 6
"""Number of an expert's tensors that an error lists."""

_STACKS = ("layers", "blocks", "h")
"""Names of a model's layers, before their numbers."""

_MOST_DIGITS = 6


def prefix_of(source: Source, layer: int) -> str:
    """
    Return the prefix of the experts of a layer, such as ``model.layers.3.mlp``.

    Raises:
        InputError: The layer has no experts, or several prefixes fit.
    """
    found: dict[int, dict[str, None]] = {}
    for name in source.names:
        prefix, experts, _ = name.partition(".experts.")
        number = layer_of(prefix) if experts else None
        if number is not None:
            found.setdefault(number, {})[prefix] = None
    prefixes = list(found.get(layer, ()))
    if len(prefixes) == 1:
        return prefixes[0]
    if prefixes:
        below_which = printable(" and ".join(prefixes))
        raise InputError(
            "layer", f"{layer} of {source} has experts below {below_which}: give a prefix"
        )
    have = f"layers {_runs(set(found))} have them" if found else "no layer has any"
    raise InputError("layer", f"{layer} of {source} has no experts: {have}")


def layer_of(prefix: str) -> int | None:
    """Return the number of the layer in a prefix; None if it has no number."""
    words = prefix.split(".")
    for kind, number in pairwise(words):
        is_number = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
        if kind in _STACKS and is_number:
            return int(number)
    return None


def _runs(numbers: set[int]) -> str:
    """Return numbers as text; consecutive numbers become ranges."""
    starts = sorted(each for each in numbers if each - 1 not in numbers)
    ends = sorted(each for each in numbers if each + 1 not in numbers)
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(one) if one == last else f"{one} to {last}" for one, last in pairs)


def form_of(
    source: Source, prefix: str, family: str | None, *, is_static_left_out: bool
) -> tuple[str, Form]:
    """
    Return the name of the family of the layer below a prefix, and the layer's form.

    Args:
        source: The source of the tensors.
        prefix: Prefix of its names.
        family: One of `FAMILIES`; None: the first whose names are there.
        is_static_left_out: Whether static scales of tokens are allowed, and left out.

    Raises:
        InputError: There is no layer, or the encoding of its values is unknown.
        OSError: A file cannot be read.
    """
    if family is not None and (not isinstance(family, str) or family not in FAMILIES):
        raise InputError("family", f"must be one of {', '.join(FAMILIES)} (got {family!r})")
    for name in FAMILIES if family is None else (family,):
        each = FAMILIES[name]
        if _is_in(source, prefix, each):
            return known_as(each), _form(source, prefix, each, is_static_left_out)
    if family is not None:
        raise InputError("prefix", f"{prefix!r} has no experts of {family} in {source}")
    start = below(prefix, "")
    found = [each for each in source.names if each.startswith(start)]
    what = f"begins with {', '.join(map(shown, found[:3]))}" if found else "has no tensor"
    modules = dict.fromkeys(each.names(each.gate_up[0], "weight")[0] for each in FAMILIES.values())
    raise InputError(
        "prefix",
        f"{prefix!r} of {source} {what}, and experts of {', '.join(FAMILIES)} can be read: "
        f"{', '.join(modules)}, or {', '.join(_VALUES[1:])} in its place; give what stands "
        "before '.experts'",
    )


def _is_in(source: Source, prefix: str, family: Family) -> bool:
    """Say whether a layer of a family is below a prefix."""
    first, down = (
        _first(source, prefix, family, each) for each in (family.gate_up[0], family.down)
    )
    has_bias = first.has(BIAS) or down.has(BIAS)
    if family.is_fused and has_bias != family.has_bias:
        return False
    return any(first.has(role) for role in _VALUES)


def _first(source: Source, prefix: str, family: Family, module: str) -> Matrix:
    return Matrix(source=source, prefix=prefix, family=family, module=module, expert=0)


def _form(source: Source, prefix: str, family: Family, is_static_left_out: bool) -> Form:
    first = _first(source, prefix, family, family.gate_up[0])
    encoding, is_turned = _encoding(source, prefix, family, first)
    roles = (*encoding.roles, *((BIAS,) if family.has_bias else ()))
    unused = []
    if is_static_left_out:
        unused = [
            name for role in _UNUSED for m in family.modules for name in family.names(m, role)
        ]
    return Form(
        family=family,
        encoding=encoding,
        reads=tuple(
            _name(source, prefix, family, module, role)
            for role in roles
            for module in family.modules
        ),
        unused=tuple(unused),
        is_turned=is_turned,
    )


def _name(source: Source, prefix: str, family: Family, module: str, role: str) -> str:
    """
    Return a name of a role that the first expert has, with the placeholder instead of its number.
    """
    names = family.names(module, role)
    here = (each for each in names if below(prefix, each.replace(EXPERT, ".0.")) in source)
    return next(here, names[0])


def _encoding(source: Source, prefix: str, family: Family, first: Matrix) -> tuple[Encoding, bool]:
    """Return the encoding of a layer, and whether its tensors are (E, K, N)."""
    for encoding in ENCODINGS:
        if not all(first.has(role) for role in encoding.roles):
            continue
        if encoding.can_turn and first.dtype(encoding.roles[0]) not in encoding.types:
            continue
        is_turned = family.is_fused and encoding.can_turn and _is_turned(source, prefix, family)
        given = Matrix(
            source=source,
            prefix=prefix,
            family=family,
            module=first.module,
            expert=0,
            is_turned=is_turned,
        )
        if encoding.fits(given):
            return encoding, is_turned
    module = f"experts.{first.module}" if family.is_fused else f"experts.0.{first.module}."
    start = below(prefix, module)
    beside = [
        f"{printable(each)} {source.dtype(each)} {source.shape(each)}"
        for each in source.names
        if each.startswith(start)
    ]
    kinds = dict.fromkeys(f"{each.name} ({', '.join(each.roles)})" for each in ENCODINGS)
    raise InputError(
        "source",
        f"holds {', '.join(beside[:_MOST_SHOWN])}, which is no encoding that is read: "
        f"{'; '.join(kinds)}",
    )


def _is_turned(source: Source, prefix: str, family: Family) -> bool:
    """
    Say whether tensors of all experts are (E, K, N), by the rule that N of the first matrix is
    twice K of the second.

    Raises:
        InputError: The shapes fit neither order.
    """
    up, down = (_first(source, prefix, family, module) for module in family.modules)
    names = [each.name("weight") for each in (up, down)]
    shapes = [source.shape(name) if name in source else () for name in names]
    for name, shape in zip(names, shapes, strict=True):
        if len(shape) != 3 or 0 in shape:
            raise InputError(
                "source", f"{name} must be (E, K, N) or (E, N, K), with values (got {shape})"
            )
    (_, first, second), (_, one, other) = shapes
    inputs = family.inputs
    if (first, second) == (inputs * other, one):  # without gates so are turned ones
        return False
    if (second, first) == (inputs * one, other):
        return True
    rows = "2 I" if family.is_gated else "I"
    raise InputError(
        "source",
        f"{names[0]} must have shape (E, {rows}, H) and {names[1]} (E, H, I), or both turned (got "
        f"{shapes[0]} and {shapes[1]})",
    )
