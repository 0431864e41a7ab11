# SPDX-License-Identifier: Apache-2.0
"""
The kernels that every push compiles, runs and compares: few, which have between them every value
of every field of every config, so that a new member of an enumeration has its kernel by itself.

They are taken from what a target can be asked for (`tests.strategies`). A value that none of those
has is tried in some of them, field by field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import Field, fields, replace
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from jitgen.codegen.parameters import template_of
from jitgen.config import Arch, Config
from jitgen.config.config import Part, members_of
from jitgen.errors import ConfigError
from jitgen.targets.legality import check, target
from tests.covering import covering
from tests.strategies import sweep
from tests.targets import OWN

TRIED = 24
"""Configs in which a value that no config has is tried."""


SIZES = {
    "activation_backward": "3:20:256",
    "add_lora": "5:32:264:16",
    "combine": "9:64:3",
    "combine_ranks": "3:2:72",
    "dispatch": "3:2:80:3",
    "grouped_gemm": "3:40:136:256",
    "grouped_gemm_wgrad": "3:40:136:256",
    "moe_decode": "2:2:3:128:128",
    "moe_fc2_dense": "3:5:72:256",
    "permute_quantize": "3:20:256:4",
    "quantize": "3:40:256",
    "route": "9:16:2",
    "activation_quantize": "3:20:256",
    "unpack_weights": "2:72:160",
}
"""Small problems, as `jitgen verify --problem` takes them; other operations have their own."""


class Value(NamedTuple):
    """
    A value of a field, as a word: of an enumeration or a switch the value itself, of a number
    whether it is the default one; None where the field is optional and left out.
    """

    field: str
    word: str


class Kernel(NamedTuple):
    """One kernel, and its name as the name of a case."""

    config: Config
    arch: Arch

    def __str__(self) -> str:
        return self.config.name(self.arch)

    @property
    def values(self) -> frozenset[Value]:
        """The values of its config."""
        return values(self.config)


@cache  # configs share most of their parts
def values(part: Part, above: str = "") -> frozenset[Value]:
    """Return the value of each field of a config, those of its parts as ``PART.FIELD``."""
    found: set[Value] = set()
    for field in _fields(type(part)):
        value, name = getattr(part, field.name), f"{above}{field.name}"
        if isinstance(value, Part):
            found |= values(value, f"{name}.")
        else:
            found.add(Value(name, _word(field, value)))
    return frozenset(found)


@cache
def _fields(kind: type[Part]) -> tuple[Field[Any], ...]:
    return fields(kind)  # type: ignore[arg-type]


def possible(kind: type[Part], above: str = "") -> Iterator[Value]:
    """Yield each value that the fields of a class of configs can have."""
    for field in _fields(kind):
        name, of = f"{above}{field.name}", field.metadata["type"]
        if issubclass(of, Part):
            yield from possible(of, f"{name}.")
        else:
            yield from {Value(name, _word(field, value)): None for value in _all(field)}


def _word(field: Field[Any], value: Any) -> str:
    if type(value) is not int:
        return str(value)
    if type(field.default) is not int:
        return "a number"
    return "the default" if value == field.default else "another number"


def _all(field: Field[Any]) -> Iterator[Any]:
    """Yield every value of a field, of a number a few."""
    kind, default = field.metadata["type"], field.default
    if kind is bool:
        yield from (False, True)
    elif issubclass(kind, StrEnum):
        yield from members_of(field.metadata)
    else:
        yield from (default, 2 * default, default // 2) if type(default) is int else ()
        yield from (1, 2, 3, 4)
    if field.metadata["is_optional"]:
        yield None


def _with(kernel: Kernel, value: Value) -> Kernel | None:
    """Return a legal kernel that has a value, and all else as `kernel`; None where none is."""
    configs = _changed(kernel.config, value.field.split("."), value.word)
    legal = (config for config in configs if check(config, kernel.arch))
    return next((Kernel(config, kernel.arch) for config in legal), None)


def _changed(part: Any, path: list[str], word: str) -> Iterator[Any]:
    """Yield a part of a config with each value that `word` stands for at the end of `path`."""
    (field,) = (field for field in _fields(type(part)) if field.name == path[0])
    if path[1:]:
        inner = _changed(getattr(part, field.name), path[1:], word)
        yield from (replace(part, **{field.name: each}) for each in inner)
        return
    for value in _all(field):
        if _word(field, value) == word:
            with suppress(ConfigError):  # a number below the least or beyond the most
                yield replace(part, **{field.name: value})


@cache
def pool(arch: Arch, op: str) -> tuple[Kernel, ...]:
    """Return legal kernels that have every value of a field that any kernel of a target has."""
    found = [Kernel(config, arch) for config in sweep(arch, op)]
    have = {value for kernel in found for value in kernel.values}
    some = [*covering(found, _values), *found[:: max(1, len(found) // TRIED)]]
    for value in possible(type(found[0].config)):
        if value not in have:
            found += islice(filter(None, (_with(kernel, value) for kernel in some)), 1)
    return tuple(found)


@cache
def kernels(op: str, *, on_gpu: bool) -> list[Kernel]:
    """
    Return the kernels of an operation for every push: for each folder of templates few that have
    every value between them.
    """
    pools: dict[str, list[Kernel]] = {}
    for arch in OWN:
        if arch.is_gpu == on_gpu and op in target(arch).operations:
            for kernel in pool(arch, op):
                folder = template_of(*kernel).entry.partition("/")[0]
                pools.setdefault(folder, []).append(kernel)
    for folder, found in pools.items():  # first those of the target that it is named for
        found.sort(key=lambda kernel: target(kernel.arch).family != folder)
    return [kernel for found in pools.values() for kernel in _fewer(covering(found, _values))]


def _fewer(found: list[Kernel]) -> list[Kernel]:
    """
    Return kernels with the same values, fewer if possible: values of one kernel alone are moved to
    others that can have them.
    """
    for kernel in reversed(found):
        others = [other for other in found if other is not kernel]
        alone = kernel.values.difference(*(other.values for other in others))
        for number, other in enumerate(others):
            richer: Kernel | None = other
            for value in sorted(alone):
                richer = richer and _with(richer, value)
            changed = [*others[:number], richer, *others[number + 1 :]]
            if richer and _have(changed) >= _have(found):
                return _fewer(changed)
    return found


def _have(found: Iterable[Kernel]) -> set[Value]:
    return {value for kernel in found for value in kernel.values}


def _values(kernel: Kernel) -> frozenset[Value]:
    return kernel.values
