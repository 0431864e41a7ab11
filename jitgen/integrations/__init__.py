# SPDX-License-Identifier: Apache-2.0
"""
Integrations: jitgen inside other programs. Modules import their programs on first use.

No program is a dependency. Only `vllm_experts`, `vllm_packed_experts`, `vllm_ranks` and
`sglang_ranks` import theirs when they are imported themselves, which happens on first use.
"""
