# SPDX-License-Identifier: Apache-2.0
"""
Imported once by the process that compile processes are forked from: they find the compiler there,
as jitgen imported it, with nobody's settings.
"""

from __future__ import annotations

from jitgen.compile import compiler

with compiler.neutral_environment():
    compiler.import_compiler()
