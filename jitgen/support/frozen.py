# SPDX-License-Identifier: Apache-2.0
"""
Frozen dataclasses that are quick to import.

``@frozen`` means ``@dataclass(frozen=True, slots=True, kw_only=True)``. The standard library writes
six methods of such a class as text and compiles them, 0.4 ms each time that the class is imported,
and a first call imports a score of classes. Only ``__init__`` must be compiled for each class; the
other methods are the same for all classes and are defined here. `dataclasses.fields`, `replace` and
`asdict`, `copy` and `pickle` work as with any dataclass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

_Class = TypeVar("_Class", bound=type)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, eq_default=True, field_specifiers=(field,)
)
def frozen(cls: _Class) -> _Class:
    """
    Make `cls` a frozen dataclass with slots, whose fields are given by name.

    Instances are equal if they have the same class and equal fields, and can be hashed if all
    their fields can.
    """
    for name, method in _METHODS.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    made: Any = dataclass(eq=False, repr=False, slots=True, kw_only=True)(cls)
    names = [spec.name for spec in fields(made) if spec.compare]
    made.__compared__ = staticmethod(attrgetter(*names) if names else _nothing)
    frozen_class: _Class = made
    return frozen_class


def _nothing(_: Any) -> tuple[()]:
    return ()


def _set(self: Any, name: str, value: Any) -> None:
    """Write a field that has no value yet, for ``__init__``; refuse every other write."""
    if name not in self.__dataclass_fields__ or hasattr(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(_self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _equal(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__compared__(self) == self.__compared__(other)


def _hash(self: Any) -> int:
    return hash(self.__compared__(self))


def _repr(self: Any) -> str:
    values = (f"{spec.name}={getattr(self, spec.name)!r}" for spec in fields(self) if spec.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"


_METHODS: dict[str, Callable[..., Any]] = {
    "__setattr__": _set,
    "__delattr__": _delete,
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
}
