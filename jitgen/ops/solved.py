# SPDX-License-Identifier: Apache-2.0
"""
Calls of any operation with their expected results, for `jitgen verify`, measurements and tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.operation import Excuse, Result
from jitgen.support.frozen import frozen

UNTOUCHED = 77
"""Value of each byte of a result before a kernel runs."""


def untouched(tensor: Tensor) -> Tensor:
    """
    Fill the memory of a result, including that between its rows, with `UNTOUCHED`; return the
    tensor.
    """
    tensor.untyped_storage().fill_(UNTOUCHED)  # type: ignore[attr-defined]
    return tensor


def bits_of(tensor: Tensor) -> Tensor:
    """Return the values of a tensor as integers with the same bits."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
    return tensor.view(kinds[tensor.element_size()])


def bits_differ(found: Tensor, expected: Tensor) -> Tensor:
    """
    Return which values differ in their bits; two NaNs never differ, because there are several NaNs.
    """
    both_nan = found.float().isnan() & expected.float().isnan()
    return (bits_of(found) != bits_of(expected)) & ~both_nan


def further_than(allowed: Tensor | float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that says which values differ by more than `allowed`; two NaNs never do."""

    def differ(found: Tensor, expected: Tensor) -> Tensor:
        found, expected = found.double(), expected.double()
        is_near = (found == expected) | ((found - expected).abs() <= allowed)
        return ~is_near & ~(found.isnan() & expected.isnan())

    return differ


@frozen
class Output:
    """
    A result of a call: the values that the kernel writes, and the right ones.

    Attributes:
        name: Name of the argument.
        found: The tensor that the kernel writes; `untouched` before.
        expected: The right values.
        owned: Which values, or rows, belong to a group: bool, of the first dimensions of `found`.
            The others must not be changed. None: all belong to a group.
        differ: Function of found and expected values that says which of them differ.
        of_groups: Whether the first dimension is the group.
    """

    name: str
    found: Tensor
    expected: Tensor
    owned: Tensor | None = None
    differ: Callable[[Tensor, Tensor], Tensor] = bits_differ
    of_groups: bool = False

    def write(self, values: Tensor) -> None:
        """Write the `values` that belong to a group, as a kernel would."""
        mine, theirs = bits_of(self.found), bits_of(values)
        where = ... if self.owned is None else self.owned
        mine[where] = theirs[where]

    def result(self) -> Result:
        """Return the result, compared value by value."""
        found, expected, owned = self.found, self.expected, self.owned
        is_wrong, group, row = self.differ(found, expected), None, None
        if owned is not None:
            before = torch.full((found.element_size(),), UNTOUCHED, dtype=torch.uint8)
            bits = bits_of(found)
            is_touched = bits != before.to(found.device).view(bits.dtype)
            side = [1] * (found.ndim - owned.ndim)
            is_wrong = is_wrong.where(owned.reshape(*owned.shape, *side), is_touched)
            is_owned = owned if side else owned.any(-1)
            group = torch.where(is_owned, 0, -1)
        elif self.of_groups:
            groups, rows = found.shape[:2]
            group = torch.arange(groups).repeat_interleave(rows)
            row = torch.arange(rows).repeat(groups)
        return compared(self.name, found, expected, is_wrong, group, row)


class Compared:
    """A call whose results are compared with the expected ones."""

    __slots__ = ()

    def results(self) -> list[Result]:
        """Return the results, compared value by value."""
        raise NotImplementedError

    def wrong(self) -> int:
        """Count wrong values; a value in a row of no group is wrong if the kernel wrote it."""
        return sum(int(result.is_wrong.sum()) for result in self.results())


@frozen
class Solved(Compared):
    """
    A call with its expected results.

    Attributes:
        tensors: The arguments of the kernel, in order, without the number of SMs.
        arguments: The arguments of the public function, by name; empty if it is not called.
        is_exact: Whether results are exact, because values are small integers or similar.
        outputs: The results, in the order in which the public function returns them.
    """

    tensors: tuple[Any, ...]
    arguments: dict[str, Any]
    is_exact: bool
    outputs: tuple[Output, ...]

    def output(self, name: str) -> Output:
        """Return the result with this name."""
        return next(each for each in self.outputs if each.name == name)

    def solve(self, function: Callable[..., Any]) -> int:
        """
        Run a function that takes `arguments`, and store its results; return the number of wrong
        values.
        """
        given = [value for name, value in self.arguments.items() if name != "out"]
        found = function(**self.arguments)
        new = [each for each in _tensors(found) if not any(each is value for value in given)]
        returned = [each for each in self.outputs if not any(each.found is v for v in given)]
        for output, values in zip(returned, new, strict=True):
            if values is not output.found:
                output.write(values)
        return self.wrong()

    def results(self) -> list[Result]:
        """Return the results, compared value by value."""
        return [output.result() for output in self.outputs]

    def errors(self) -> tuple[float, float]:
        """
        Return the relative errors of the first result that may have rounding errors, as
        `relative_errors` does. If all results must have the expected bits, return the fraction of
        wrong values, and 1 if there are any.
        """
        for output in self.outputs:
            if output.differ is not bits_differ:
                owned = ... if output.owned is None else output.owned
                pair = (output.found, output.expected)
                return relative_errors(*(each[owned].double() for each in pair))
        wrong = self.wrong()
        values = sum(output.found.numel() for output in self.outputs)
        return wrong / max(1, values), float(wrong > 0)


def _tensors(found: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result, which may be tuples of tuples, in order."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, tuple):
        for each in found:
            yield from _tensors(each)


def compared(
    name: str,
    found: Tensor,
    expected: Tensor,
    is_wrong: Tensor,
    group: Tensor | None = None,
    row: Tensor | None = None,
) -> Result:
    """
    Return one compared result of a call, as a float32 matrix of rows and columns.

    Args:
        name: Name of the argument.
        found: The values that the kernel wrote.
        expected: The right values.
        is_wrong: Which values are wrong, bool.
        group: The group of each row, -1 for a row of no group; None: all rows are of group 0.
        row: The index of each row within its group; None: the index of the row.
    """
    if group is None:
        group = torch.zeros(len(found), dtype=torch.int64)
    group = group.flatten().cpu()
    row = torch.arange(len(group)) if row is None else row.flatten().cpu()
    have, want, wrong = (x.reshape(len(group), -1).cpu() for x in (found, expected, is_wrong))
    return Result(
        name=name,
        found=have.float().numpy(),
        expected=want.float().numpy(),
        is_wrong=wrong.numpy(),
        group=group.numpy(),
        row=row.numpy(),
    )


def relative_errors(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """
    Return the error in the Frobenius norm, relative to the norm of the expected values, and the
    largest error, relative to the largest expected value.
    """
    if not found.numel():
        return 0.0, 0.0
    tiny = torch.finfo(torch.float32).tiny
    frobenius = (found - expected).norm() / expected.norm().clamp_min(tiny)
    largest = (found - expected).abs().max() / expected.abs().max().clamp_min(tiny)
    return float(frobenius), float(largest)


def nothing_unreachable(_config: Config) -> tuple[Excuse, ...]:
    """Return no excuses: problems reach every branch of kernels of `config`."""
    return ()
