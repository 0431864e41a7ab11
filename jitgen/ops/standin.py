# SPDX-License-Identifier: Apache-2.0
"""What serves tensors in host memory: kernels for the CPU, unless something stands in for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jitgen.config import Arch
from jitgen.errors import JitgenError
from jitgen.ops.grouped_gemm.config import KernelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """
    A GPU that is none: it takes tensors in host memory.

    Attributes:
        arch: The target that it passes for.
        num_sms: SMs that it has.
        function: Returns what runs a config: a function of what the kernel's entry takes.
    """

    arch: Arch
    num_sms: int
    function: Callable[[KernelConfig], Callable[..., Any]]


_current: StandIn | None = None


def current() -> StandIn | None:
    """Return what stands in for a GPU; None: tensors in host memory are the CPU's."""
    return _current


@contextmanager
def stand_in(device: StandIn) -> Iterator[None]:
    """Let `device` serve tensors in host memory, for every thread of this process."""
    global _current
    from jitgen.ops.grouped_gemm.dispatch import memo

    if _current is not None:
        raise JitgenError(
            f"{_current.arch} is being stood in for already: leave that context first"
        )
    _current = device
    memo.clear()  # its launches do not say which target they are for
    try:
        yield
    finally:
        _current = None
        memo.clear()
