# SPDX-License-Identifier: Apache-2.0
"""
What an MoE layer does around its GEMMs, each step beside torch and beside a copy of as many bytes.

Each module here but `sides` is one operation: its function ``cases`` yields what is measured on a
target, each a `sides.Case`. A new operation is a new file, and nothing else.

On a GPU all sides of a case take turns, each as a CUDA graph of several calls whose operands share
no memory: they are cold, and no host is too slow. Kernels are those that the selector chooses.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from jitgen.autotune.measure.clock import has_gpu
from jitgen.bench.glue.sides import measured
from jitgen.bench.protocol import Row
from jitgen.config import Arch
from jitgen.targets.devices import default_arch

_SHARED = ("sides",)


def operations() -> tuple[str, ...]:
    """Return the modules that measure an operation, sorted."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in found if name not in _SHARED))


def rows() -> Iterator[Row]:
    """
    Yield for each case the rate of a copy, of ours, of torch's operations and of what inductor
    makes of them.

    Raises:
        WrongResult: A kernel computes something wrong.
    """
    arch = default_arch() if has_gpu() else Arch.CPU
    for name in operations():
        for case in importlib.import_module(f"{__name__}.{name}").cases(arch):
            yield from measured(case, arch)
