# SPDX-License-Identifier: Apache-2.0
"""
The semantics of the instructions: a module for each family, with its emitters and their functions.

Importing this package imports all of them, which fills the table of emitters.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
