# SPDX-License-Identifier: Apache-2.0
"""
Integrations: jitgen inside other programs. Each module imports its program on first use.

None of them is a dependency, and importing a module here imports nothing but jitgen.
"""
