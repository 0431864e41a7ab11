# SPDX-License-Identifier: Apache-2.0
"""
Integrations: jitgen inside other programs. Modules import their programs on first use.

No program is a dependency. Only `vllm_experts` and `vllm_ranks` import theirs when they are
imported themselves, which happens on first use.
"""
