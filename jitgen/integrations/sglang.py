# SPDX-License-Identifier: Apache-2.0
"""
SGLang: jitgen in the place of its fused Triton experts, for bfloat16 and for FP8 with scales for
128 x 128.

SGLang finds `register` as an entry point of ``sglang.srt.plugins``, and it does something only
where ``SGLANG_PLUGINS`` names ``jitgen``; then ``--moe-runner-backend triton`` is jitgen. Layers of
another kind keep SGLang's own experts, and a warning says why. Written for SGLang 0.5.23 and never
run inside of it: its parts were tested with stand-ins for SGLang's.
"""

from __future__ import annotations

import importlib
import os

NAME = "jitgen"

_RUNNERS = "sglang.srt.layers.moe.moe_runner"
_PLACE = ("none", "triton")
"""SGLang's names for what jitgen replaces: tokens that stay on their rank, fused Triton experts."""


def register() -> None:
    """
    Take the place of SGLang's fused Triton experts, if ``SGLANG_PLUGINS`` names jitgen.

    Raises:
        ImportError: This SGLang has other modules than the one that this was written for.
        KeyError: It has no such experts to replace.
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
