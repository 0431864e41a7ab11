# SPDX-License-Identifier: Apache-2.0
"""Imports the names of a package on first use, and torch without its warning of a missing NumPy."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def without_numpy() -> Iterator[None]:
    """
    Keep torch silent about a missing NumPy while it is imported in the with block: jitgen needs
    none, and a program that has imported torch itself has been told.
    """
    if "torch" in sys.modules:
        yield
        return
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
        yield


def importing(
    package: str, home: dict[str, str], before: Callable[[], None] | None = None
) -> Callable[[str], object]:
    """
    Return the ``__getattr__`` of a package: it imports the module that defines a name, and stores
    the named object in the package.

    Args:
        package: The name of the package.
        home: The module of each name; ``.module`` is one of the package.
        before: What is called before such a module is imported.
    """

    def of_name(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if before is not None:
            before()
        value: object = getattr(importlib.import_module(home[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return of_name
