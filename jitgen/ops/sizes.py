# SPDX-License-Identifier: Apache-2.0
"""The sizes of calls that verify kernels of any operation, and rows that belong to groups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from jitgen.config import Arch, Layout
from jitgen.errors import ConfigError

SPARE_ROWS = 5
"""Number of rows after those of the groups, which belong to no group."""


class Number(NamedTuple):
    """
    One number in the text form of sizes.

    Attributes:
        letters: The name of the number in messages.
        words: What the number counts.
        least: The smallest allowed value.
        multiple: Values must be multiples of this.
        most: The largest allowed value; None: any.
    """

    letters: str
    words: str
    least: int = 1
    multiple: int = 1
    most: int | None = None

    def allows(self, value: int) -> bool:
        """Say whether `value` is allowed."""
        is_small = self.most is None or value <= self.most
        return self.least <= value and value % self.multiple == 0 and is_small

    def __str__(self) -> str:
        """Return what the number counts, and its limits, as text."""
        multiple = f"a multiple of {self.multiple}" if self.multiple > 1 else ""
        most = "" if self.most is None else f"at most {self.most}"
        least = f"at least {self.least}" if self.least else ""
        limits = ", ".join(filter(None, (least, multiple, most)))
        return f"{self.words} ({limits})" if limits else self.words


GROUPS = Number("G", "groups")
ROWS = Number("M", "rows in all", least=0)


def numbers_of(text: str, numbers: Sequence[Number]) -> tuple[int, ...]:
    """
    Return the values of `numbers` in a text such as ``3:24:128``.

    Raises:
        ConfigError: `text` has another form, or a value is not allowed.
    """
    match = re.fullmatch(":".join([r"(\d+)"] * len(numbers)), text)
    found = tuple(map(int, match.groups())) if match else ()
    if not match or not all(map(Number.allows, numbers, found)):
        form = ":".join(number.letters for number in numbers)
        raise ConfigError(f"problem {text!r} is not {form}: {', '.join(map(str, numbers))}")
    return found


class AnySizes:
    """
    The sizes of a call that verifies a kernel. Subclasses are frozen dataclasses with the sizes as
    fields.

    Attributes:
        numbers: The numbers in the text form of sizes, such as ``3:24:128``.
        words: Format string of the sizes as text, with the names of fields in braces.
        num_sms: SMs of the GPU: few, so that a warp or a CTA gets several tiles.
    """

    __slots__ = ()

    numbers: ClassVar[tuple[Number, ...]]
    words: ClassVar[str]

    @classmethod
    def of(cls, config: Any, arch: Arch) -> tuple[Self, ...]:
        """Return sizes that test `config` and together execute all code of a kernel."""
        raise NotImplementedError

    @classmethod
    def edges(cls, _config: Any, _arch: Arch) -> tuple[Self, ...]:
        """
        Return further sizes, for which only values are checked: at, below and above every constant
        of the config that its kernel compares a number with. Each is run once, with its own seed.
        The base class returns none.
        """
        return ()

    @classmethod
    def of_numbers(cls, config: Any, *numbers: int) -> Self:
        """Return the sizes for a kernel of `config` from these values of `numbers`."""
        raise NotImplementedError

    @classmethod
    def parse(cls, text: str, config: Any) -> Self:
        """
        Return the sizes that a text such as ``3:24:128`` describes.

        Raises:
            ConfigError: `text` does not have the numbers of this class, or a value is not allowed.
        """
        return cls.of_numbers(config, *numbers_of(text, cls.numbers))

    def __str__(self) -> str:
        """Return the sizes as text."""
        fields = type(self).__dataclass_fields__  # type: ignore[attr-defined]
        shown = {name: getattr(self, name) for name in fields}
        if isinstance(shown.get("rows"), tuple):
            shown["rows"] = rows_in_words(shown["rows"])
        return self.words.format(**shown) + f", {shown['num_sms']} SMs"


def unequal_rows(rows: int, groups: int) -> tuple[int, ...]:
    """Return very unequal numbers of rows for the groups, which add up to `rows`."""
    ends = [rows * (i * i) // (groups * groups) for i in range(1, groups + 1)]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def rows_in_words(rows: tuple[int, ...]) -> str:
    """Return the rows of groups as text; equal neighbours are counted: ``3 + 32 x 0 + 129``."""
    runs = [(count, len([*equal])) for count, equal in groupby(rows)]
    return " + ".join(f"{times} x {count}" if times > 1 else f"{count}" for count, times in runs)


def grouped_rows(layout: Layout, rows: Sequence[int]) -> tuple[tuple[int, ...], Tensor]:
    """
    Return the leading shape of a tensor with these rows of each group, and the int32 tensor that
    gives groups their rows. In every layout there are rows of no group.
    """
    if layout is Layout.MASKED:
        return (len(rows), max(*rows, 1, 1) + SPARE_ROWS), torch.tensor(rows, dtype=torch.int32)
    if layout is Layout.RAGGED:
        return (sum(rows) + SPARE_ROWS,), torch.tensor([*accumulate(rows)], dtype=torch.int32)
    indices: list[int] = []
    for group, count in enumerate(rows):
        indices += [group] * count + [-1] * (group % 3 + 1)
    return (len(indices),), torch.tensor(indices, dtype=torch.int32)
