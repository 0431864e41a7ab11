# SPDX-License-Identifier: Apache-2.0
"""
The machine: grid, clusters, CTAs and the fragments of threads that run in them; memories; barriers.

Nothing here knows an instruction. `jitgen.emulator.isa` says what instructions do to these objects.
"""
