# SPDX-License-Identifier: Apache-2.0
"""
SGLang: jitgen as the replacement of its fused Triton experts, for bfloat16 weights and for FP8
weights with scales for 128 x 128 blocks.

SGLang finds `register` as an entry point of ``sglang.srt.plugins``. The function has an effect only
if ``SGLANG_PLUGINS`` names ``jitgen``; then ``--moe-runner-backend triton`` uses jitgen. Layers of
another kind keep SGLang's experts, and a warning says why. The module was written for SGLang 0.5.23
and was never run inside it: its parts were tested with substitutes of SGLang's classes.
"""

from __future__ import annotations

import importlib
import os

NAME = "jitgen"

_RUNNERS = "sglang.srt.layers.moe.moe_runner"
_PLACE = ("none", "triton")
"""
SGLang's names of the parts that jitgen replaces: tokens that stay on their rank, and fused Triton
experts.
"""


def register() -> None:
    """
    Replace SGLang's fused Triton experts, if ``SGLANG_PLUGINS`` names jitgen.

    Raises:
        ImportError: The modules of this SGLang differ from those of the version for which this was
            written.
        KeyError: This SGLang has no fused Triton experts.
    """
    if NAME not in os.environ.get("SGLANG_PLUGINS", "").split(","):
        return
    importlib.import_module(f"{_RUNNERS}.triton")  # which registers them
    pool = importlib.import_module(f"{_RUNNERS}.base").FusedOpPool
    usual = pool._fused_funcs[_PLACE]
    if not hasattr(usual, NAME):
        from jitgen.integrations.sglang_experts import fused

        ours = fused(usual)
        setattr(ours, NAME, True)
        pool._fused_funcs[_PLACE] = ours
