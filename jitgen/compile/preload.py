# SPDX-License-Identifier: Apache-2.0
"""
Imports the compiler, in a neutral environment, and the modules that render sources. The process
from which compile processes are forked imports this module, so that its children need not.
"""

from __future__ import annotations

from jitgen.compile import compiler

with compiler.neutral_environment():
    compiler.import_compiler()

from jitgen.codegen import render  # noqa: F401  # last: it fails without Jinja
