# SPDX-License-Identifier: Apache-2.0
"""Activations to MXFP8, MXFP4 and NVFP4 in one pass: what `jitgen.quantize` runs on a GPU."""

from jitgen.ops.protocol import Operation

OPERATION = Operation(
    name="quantize",
    config="jitgen.ops.quantize.config:QuantizeConfig",
    problem="jitgen.ops.quantize.config:QuantizeProblem",
    samples="jitgen.ops.quantize.samples",
    arguments=("x", "groups", "q", "scale"),
    results=("q", "scale"),
    direct="jitgen.ops.quantize.direct:check",
)
