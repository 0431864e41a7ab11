# SPDX-License-Identifier: Apache-2.0
"""
Imported once by the process that compile processes are forked from, so that these have the compiler
as jitgen imports it, in a neutral environment, and what renders sources.
"""

from __future__ import annotations

from jitgen.compile import compiler

with compiler.neutral_environment():
    compiler.import_compiler()

from jitgen.codegen import render  # noqa: F401  # where there is no Jinja, the above holds
