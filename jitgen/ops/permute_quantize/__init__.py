# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens to where their experts want them, quantised: what a layer begins with."""

from jitgen.ops.permute_quantize.config import SORTED
from jitgen.ops.protocol import Operation

OPERATION = Operation(
    name="permute_quantize",
    config="jitgen.ops.permute_quantize.config:PermuteQuantizeConfig",
    problem="jitgen.ops.permute_quantize.config:PermuteQuantizeProblem",
    samples="jitgen.ops.permute_quantize.samples",
    arguments=("x", "permutation", "groups", "q", "scale"),
    results=("q", "scale", *SORTED),
    direct="jitgen.ops.permute_quantize.direct:check",
)
