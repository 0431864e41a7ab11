# SPDX-License-Identifier: Apache-2.0
"""
Imported once by the process that compile processes are forked from, so that these have the compiler
as jitgen imports it, in a neutral environment.
"""

from __future__ import annotations

from jitgen.compile import compiler

with compiler.neutral_environment():
    compiler.import_compiler()
