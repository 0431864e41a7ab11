# SPDX-License-Identifier: Apache-2.0
"""
Whole layers of experts: chains of the operations in `jitgen.ops`, checkpoints, plans and memory.

    sort_pairs -> permute_quantize -> grouped_gemm -> silu_mul_quantize -> grouped_gemm -> combine

`jitgen.moe` runs it once; `jitgen.MoELayer` is a module that holds weights, the memory between the
launches, and knows which kernels it will ask for. `jitgen.moe_experts` is the middle of it, for
tokens that another library brings into a matrix for each expert, and combines. Nothing in a chain
waits for the device.
"""
