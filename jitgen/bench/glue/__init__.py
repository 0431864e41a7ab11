# SPDX-License-Identifier: Apache-2.0
"""
What an MoE layer does around its GEMMs, each step beside torch and beside a copy of as many bytes.

Each module here but `case` is one operation: its function ``cases`` yields what is measured on a
target. A new operation is a new file, and nothing else.

On a GPU all sides of a case take turns, each as a CUDA graph of several calls whose operands share
no memory: they are cold, and no host is too slow. Kernels are those that the selector chooses.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from jitgen.bench.glue.case import Case
from jitgen.bench.runner import KernelSuite
from jitgen.config import Arch

_SHARED = ("case",)


def operations() -> tuple[str, ...]:
    """Return the modules that measure an operation, sorted."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in found if name not in _SHARED))


def cases(arch: Arch) -> Iterator[Case]:
    """Yield the cases of every operation for a device of `arch`."""
    for name in operations():
        yield from importlib.import_module(f"{__name__}.{name}").cases(arch)


SUITE = KernelSuite(name="glue", cases=cases, in_graphs=True)
rows = SUITE.rows
