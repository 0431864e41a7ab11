# SPDX-License-Identifier: Apache-2.0
"""
Converts prepacked MXFP4 weights to FP8 ones, for calls with many rows: see
`jitgen.formats.unpacked`.
"""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="unpack_weights",
    config="jitgen.config.unpack_weights:UnpackWeightsConfig",
    problem="jitgen.config.unpack_weights:UnpackWeightsProblem",
    samples="jitgen.ops.unpack_weights.samples",
    arguments=("values", "factor", "b", "b_scale"),
    results=("b", "b_scale"),
    direct="jitgen.ops.unpack_weights.call:check_direct",
)
