# SPDX-License-Identifier: Apache-2.0
"""Activation of a gate-up result and its quantisation, between the GEMMs of an MoE layer."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="activation_quantize",
    config="jitgen.config.activation_quantize:ActivationQuantizeConfig",
    problem="jitgen.config.activation_quantize:ActivationQuantizeProblem",
    samples="jitgen.ops.activation_quantize.samples",
    arguments=("x", "groups", "q", "scale"),
    results=("q", "scale"),
    direct="jitgen.ops.activation_quantize.call:check_direct",
)
