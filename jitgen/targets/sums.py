# SPDX-License-Identifier: Apache-2.0
"""
In which order kernels add up, as a property of their configs.

Float32 sums depend on their order. Two kernels give a row the same bits, whatever stands around it,
if each of its values is added up in the same order: the same products in one instruction, the same
instructions one after the other, the same promotions between. What a config changes besides, which
CTA does it and when, changes no bit.

So a target says which fields of a config are of that harmless kind, and every other field has to be
at its default. A new field is not harmless until its target says so, and a test proves it:
`tests/invariance.py` compares the bits of all that claim one order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from jitgen.config.config import Part


class SumOrder(NamedTuple):
    """
    The one order in which kernels of an operation add up on a target.

    Attributes:
        words: Text that describes the order.
        free: Fields of a config that do not change the order, and those that the arguments of a
            call determine; a part's name stands for all of its fields: ``tile``,
            ``schedule.raster``.
    """

    words: str
    free: tuple[str, ...]

    def departure(self, config: Part) -> str:
        """
        Return the first field by which `config` departs from the order, with the value it would
        need; empty if it keeps the order.
        """
        for path, value, usual in _fields(config, ""):
            is_free = any(path == free or path.startswith(f"{free}.") for free in self.free)
            if value != usual and not is_free:
                return f"{path}={value} where {usual} keeps the order"
        return ""


def _fields(part: Part, prefix: str) -> Iterator[tuple[str, object, object]]:
    """Yield the fields of a part and of its parts: path, value, default."""
    for spec in dataclasses.fields(part):
        value = getattr(part, spec.name)
        if isinstance(value, Part):
            yield from _fields(value, f"{prefix}{spec.name}.")
        else:
            usual = "nothing" if spec.default is dataclasses.MISSING else spec.default
            yield f"{prefix}{spec.name}", value, usual
