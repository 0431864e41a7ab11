# SPDX-License-Identifier: Apache-2.0
"""
Whole layers of experts: chains of the operations in `jitgen.ops`, checkpoints, plans and memory.

    sort_pairs -> permute_quantize -> grouped_gemm -> activation_quantize -> grouped_gemm -> combine

`jitgen.moe` runs the chain once. `jitgen.MoELayer` is a module that holds weights and the memory
between launches, and can list the kernels that it needs. `jitgen.moe_experts` is the middle part of
the chain, for tokens that another library brings into one matrix per expert and combines
afterwards. The host never waits for the device.
"""
