# SPDX-License-Identifier: Apache-2.0
"""
The suite of MXFP4 weights, and of weights in other formats, on Hopper, compared with jitgen's FP8
kernel and with other libraries' kernels for such weights.

Decode is bound by reading weights, so 4.25 bits a weight instead of 8 allow 1.88 times the speed.
Every ratio is the time of the FP8 kernel over the time of a side, in the same run. `operands` has
the operands of the sides, `plain` weights of every format; `sides`, `formats` and
`jitgen.bench.peers.prepacked` have the sides, `run` the measurement, `report` the results and their
targets.
"""

NAME = "hopper-fp4"
"""Name of the suite on the command line and in reports."""
