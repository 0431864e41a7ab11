# SPDX-License-Identifier: Apache-2.0
"""Activations to MXFP8, MXFP4 and NVFP4 in one pass: what `jitgen.quantize` runs on a GPU."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="quantize",
    config="jitgen.config.quantize:QuantizeConfig",
    problem="jitgen.config.quantize:QuantizeProblem",
    samples="jitgen.ops.quantize.samples",
    arguments=("x", "groups", "q", "scale"),
    results=("q", "scale"),
    direct="jitgen.ops.quantize.direct:check",
)
