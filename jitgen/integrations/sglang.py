# SPDX-License-Identifier: Apache-2.0
"""
SGLang: jitgen as the replacement of its fused Triton experts, for bfloat16 weights and for FP8
weights with scales for 128 x 128 blocks or for rows; and of FlashInfer's all-to-all.

SGLang finds `register` as an entry point of ``sglang.srt.plugins``. The function has an effect only
if ``SGLANG_PLUGINS`` names ``jitgen``; then ``--moe-runner-backend triton`` uses jitgen. Layers of
another kind keep SGLang's experts, and a warning says why. If ``SGLANG_PLUGINS`` also names
``jitgen-ranks``, ``--moe-a2a-backend flashinfer --moe-runner-backend deep_gemm`` exchanges tokens
between ranks with jitgen (`jitgen.integrations.sglang_ranks`). The module was written for SGLang
0.5.23, and no server was ever started with it: docs/integrations.md says how it was tested.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from jitgen.errors import ToolchainError

NAME, RANKS = "jitgen", "jitgen-ranks"
WRITTEN_FOR = "0.5.23"
"""The version of SGLang whose classes this was written for, with all of its post-releases."""

_RUNNERS = "sglang.srt.layers.moe.moe_runner"
_PLACE = ("none", "triton")
"""
SGLang's names of the parts that jitgen replaces: tokens that stay on their rank, and fused Triton
experts.
"""
_BETWEEN_RANKS = ("flashinfer", "deep_gemm")
"""SGLang's names of the all-to-all and the experts that jitgen replaces between ranks."""

_MAKER = "sglang.srt.layers.moe.fused_moe_triton.layer.create_moe_dispatcher"


def register() -> None:
    """
    Replace SGLang's fused Triton experts, if ``SGLANG_PLUGINS`` names jitgen, and its all-to-all,
    if ``SGLANG_PLUGINS`` names jitgen-ranks, too. Further calls have no effect.

    Raises:
        ToolchainError: SGLang is of another version than the one for which this was written.
        ImportError: There is no SGLang, or it lacks a module.
        KeyError: This SGLang has no fused Triton experts.
    """
    names = os.environ.get("SGLANG_PLUGINS", "").split(",")
    if NAME not in names:
        return
    _require_version()
    importlib.import_module(f"{_RUNNERS}.triton")  # which registers them
    pool = importlib.import_module(f"{_RUNNERS}.base").FusedOpPool
    usual = pool._fused_funcs[_PLACE]
    if not hasattr(usual, NAME):
        from jitgen.integrations.sglang_experts import fused

        ours = fused(usual)
        setattr(ours, NAME, True)
        pool._fused_funcs[_PLACE] = ours
    if RANKS in names and pool.get_fused_func(*_BETWEEN_RANKS) is None:
        hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
        hooks.HookRegistry.register(_MAKER, _choosing, hooks.HookType.AROUND)
        pool.register_fused_func(*_BETWEEN_RANKS, _experts_between_ranks)


def _require_version() -> None:
    """Require the version of SGLang whose classes this was written for."""
    found = str(importlib.import_module("sglang.version").__version__)
    if found.partition("+")[0].partition(".post")[0] != WRITTEN_FOR:
        raise ToolchainError(
            f"jitgen's plugin was written for SGLang {WRITTEN_FOR} and its post-releases (got "
            f"{found}): install SGLang {WRITTEN_FOR}, or leave jitgen out of SGLANG_PLUGINS"
        )


def _choosing(usual: Any, *given: Any, **named: Any) -> Any:
    """Return the dispatcher of a layer; modules of SGLang are imported when it makes layers."""
    from jitgen.integrations.sglang_ranks import choosing

    return choosing(usual, *given, **named)


def _experts_between_ranks(dispatched: Any, weights: Any, layer: Any) -> Any:
    from jitgen.integrations.sglang_ranks import of_ranks

    return of_ranks(dispatched, weights, layer)
