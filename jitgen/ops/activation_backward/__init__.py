# SPDX-License-Identifier: Apache-2.0
"""The gradient of an activation whose rows have weights; the activation is computed again, too."""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="activation_backward",
    config="jitgen.config.activation_backward:ActivationBackwardConfig",
    problem="jitgen.config.activation_backward:ActivationBackwardProblem",
    samples="jitgen.ops.activation_backward.samples",
    arguments=("dy", "x", "weights", "groups", "dx", "y", "sums"),
    results=("dx", "y", "sums"),
    direct="jitgen.ops.activation_backward.call:check_direct",
)
