# SPDX-License-Identifier: Apache-2.0
"""
Qwen3-MoE, and others with bfloat16 weights under these names: DeepSeek-V3 after dequantising, GLM.

``experts.E.gate_proj.weight`` and ``up_proj`` (I, H), ``down_proj`` (H, I).
"""

from __future__ import annotations

from jitgen.layer.checkpoints.matrices import plain_family

FAMILY = plain_family(("gate_proj", "up_proj"), "down_proj")
