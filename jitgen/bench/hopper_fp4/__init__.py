# SPDX-License-Identifier: Apache-2.0
"""
MXFP4 weights on Hopper beside jitgen's own FP8 kernel, and beside others who multiply them.

Decode reads weights, so that 4.25 bits a weight instead of 8 allow 1.88 times the speed: every
figure is the time of the FP8 kernel in the same run over that of a side. `operands` is what sides
multiply, `sides` and `jitgen.bench.peers.mxfp4` are who takes part, `run` is how; `report` keeps
what was found, and says what it should be.
"""

NAME = "hopper-fp4"
"""Name of the suite on the command line and in reports."""
