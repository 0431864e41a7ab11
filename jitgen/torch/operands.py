# SPDX-License-Identifier: Apache-2.0
"""
Converts operands to a form that kernels read: operands that torch's functions accept and kernels
cannot read are copied.

There are two reasons for a copy. Strides: another dimension is contiguous than the one that a
kernel needs, or strides or addresses are not multiples of the target's alignment. Sizes: they are
not multiples of it, and are padded with zeros. There is one warning, with the argument, the bytes,
and how to avoid the copy. Under torch.compile both become part of the graph, without a warning.

Quantised operands are never copied, because torch also accepts them in one order only.
float8_e4m3fn operands with groups along K, which no kernel supports, are converted to bfloat16.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn.functional import pad

from jitgen.config import Arch
from jitgen.events import warn_once
from jitgen.ops.dispatcher import constant_result, is_traced
from jitgen.runtime import devices
from jitgen.runtime.session import current
from jitgen.targets.legality import rules

WIDE = (torch.bfloat16, torch.float16, torch.float32)
"""Types without scales; operands of these types may be copied."""


class Call(NamedTuple):
    """
    Requirements of kernels for a call of one of torch's functions.

    Attributes:
        function: Its name, for warnings.
        k_multiple: K is a multiple of this, in elements.
        n_multiple: The number of columns of a result is a multiple of this.
        alignment: Addresses and strides are multiples of this, in bytes.
    """

    function: str
    k_multiple: int = 1
    n_multiple: int = 1
    alignment: int = 1

    @classmethod
    def of(cls, function: str, matrix: Tensor, out_dtype: torch.dtype) -> Call:
        """
        Return the alignment, and the multiples of K and N, that kernels without scales require of
        operands like `matrix`.

        Raises:
            InputError: There are no kernels for its device.
        """
        alignment = _alignment(matrix.device)
        if alignment == 1:
            return cls(function)
        of_operands = max(1, alignment // matrix.element_size())
        return cls(
            function=function,
            k_multiple=of_operands,
            n_multiple=max(of_operands, alignment // out_dtype.itemsize),
            alignment=alignment,
        )

    def rows(self, name: str, matrix: Tensor, side: str, *, is_turned: bool = False) -> Tensor:
        """
        Return an argument with its last dimension contiguous.

        Args:
            name: The argument.
            matrix: Its value.
            side: Name of that dimension, for warnings.
            is_turned: Whether to return the transpose, so that the first dimension of the matrix
                becomes the last.
        """
        turned = matrix.mT if is_turned else matrix
        if _is_readable(turned, self.alignment):
            return turned
        self._tell_of_a_copy(name, matrix, side)
        return turned.contiguous()

    def weights(self, name: str, matrices: Tensor, sides: str) -> Tensor:
        """Return the argument `name` with one of its last two dimensions contiguous."""
        if any(_is_readable(each, self.alignment) for each in (matrices, matrices.mT)):
            return matrices
        self._tell_of_a_copy(name, matrices, sides)
        return matrices.contiguous()

    def filled(self, name: str, matrix: Tensor, **sides: int) -> Tensor:
        """
        Return the argument `name` padded with zeros at the end of its last two dimensions.

        Args:
            name: The argument.
            matrix: Its value.
            sides: Names of the last two dimensions in their order, each with the size that it must
                be a multiple of.
        """
        if self.alignment == 1:
            return matrix
        missing = [-size % by for size, by in zip(matrix.shape[-2:], sides.values(), strict=True)]
        if not any(missing):
            return matrix
        found = pad(matrix, (0, missing[1], 0, missing[0]))
        if not is_dynamo_compiling():
            wanted = ", ".join(f"{side} a multiple of {by}" for side, by in sides.items() if by > 1)
            warn_once(
                f"{self.function} fills {name}",
                "jitgen.torch.%s copies %s at each call, and %s bytes here, with zeros behind it: "
                "kernels read whole %d bytes (got shape %s). %s would save that",
                *(self.function, name, f"{found.numel() * found.element_size():,}"),
                *(self.alignment, tuple(matrix.shape), wanted),
            )
        return found

    def _tell_of_a_copy(self, name: str, matrix: Tensor, sides: str) -> None:
        if is_dynamo_compiling():
            return
        aligned = f", at addresses and in strides of whole {self.alignment} bytes,"
        warn_once(
            f"{self.function} copies {name}",
            "jitgen.torch.%s copies %s at each call, %s bytes here: no kernel reads strides %s. %s "
            "contiguous%s would save that",
            *(self.function, name, f"{matrix.numel() * matrix.element_size():,}"),
            *(matrix.stride(), sides, aligned if self.alignment > 1 else ""),
        )


def widened(function: str, mat_a: Tensor, mat_b: Tensor) -> tuple[Tensor, Tensor]:
    """Return float8_e4m3fn operands in bfloat16, which represents all of their values."""
    if not is_dynamo_compiling():
        warn_once(
            f"{function} widens",
            "jitgen.torch.%s copies mat_a and mat_b at each call, %s bytes here: with groups along "
            "K no kernel reads float8_e4m3fn, and bfloat16 holds all of its values",
            *(function, f"{2 * (mat_a.numel() + mat_b.numel()):,}"),
        )
    order = torch.contiguous_format  # that in which the product reads them
    wide_a = mat_a.t().to(torch.bfloat16, memory_format=order).t()
    return wide_a, mat_b.to(torch.bfloat16, memory_format=order)


@constant_result
def _alignment(device: torch.device) -> int:
    """Return the alignment of addresses and strides, in bytes; torch.compile evaluates it once."""
    return _of_arch(devices.find(device, current.get(), "mat_a").arch)


@cache
def _of_arch(arch: Arch) -> int:
    return int(rules(arch, "grouped_gemm").alignment)


def _is_readable(matrix: Tensor, alignment: int) -> bool:
    """Return whether kernels can read a matrix, or several, whose last dimension is contiguous."""
    if matrix.shape[-1] > 1 and matrix.stride(-1) != 1:
        return False
    size = matrix.element_size()
    if alignment <= size:  # torch sees to that
        return True
    strides = zip(matrix.shape[:-1], matrix.stride()[:-1], strict=True)
    if any(length > 1 and stride * size % alignment for length, stride in strides):
        return False
    if is_dynamo_compiling() or is_traced((matrix,)):  # it has no address
        return True
    return matrix.data_ptr() % alignment == 0
