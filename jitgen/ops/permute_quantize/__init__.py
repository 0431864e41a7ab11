# SPDX-License-Identifier: Apache-2.0
"""
Copies the rows of tokens into the order of experts, and quantises them: the first step of a layer.
"""

from jitgen.config.operation import Operation
from jitgen.config.permute_quantize import SORTED

OPERATION = Operation(
    name="permute_quantize",
    config="jitgen.config.permute_quantize:PermuteQuantizeConfig",
    problem="jitgen.config.permute_quantize:PermuteQuantizeProblem",
    samples="jitgen.ops.permute_quantize.samples",
    arguments=("x", "permutation", "groups", "q", "scale"),
    results=("q", "scale", *SORTED),
    direct="jitgen.ops.permute_quantize.direct:check",
)
