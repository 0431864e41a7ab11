# SPDX-License-Identifier: Apache-2.0
"""
Low-rank adapters of experts, added to the rows of a product; each row uses one adapter of a batch
of adapters.
"""

from jitgen.config.operation import Operation

OPERATION = Operation(
    name="add_lora",
    config="jitgen.config.add_lora:AddLoraConfig",
    problem="jitgen.config.add_lora:AddLoraProblem",
    samples="jitgen.ops.add_lora.samples",
    arguments=(
        *("y", "x", "a", "b", "scales", "adapter_ids", "topk_ids", "permutation", "out"),
        "first_expert",
    ),
    results=("out",),
    direct="jitgen.ops.add_lora.call:check_direct",
)
