# SPDX-License-Identifier: Apache-2.0
"""
jitgen inside of others' programs: one module for each, which imports that program when it is asked.

None of them is a dependency, and importing a module here imports nothing but jitgen.
"""
