# SPDX-License-Identifier: Apache-2.0
"""
The machine: grid, clusters, CTAs and the fragments of threads that run in them; memories; barriers.

This package does not depend on instructions; `jitgen.emulator.isa` defines what instructions do to
these objects.
"""
