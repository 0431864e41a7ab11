# SPDX-License-Identifier: Apache-2.0
"""
vLLM: jitgen's experts in the place of its own, for bfloat16 and for FP8 with scales for 128 x 128
or for rows.

vLLM finds `register` as an entry point of ``vllm.general_plugins``, and it does something only
where ``VLLM_PLUGINS`` names ``jitgen``: to have both installed changes nothing. There is no
interface for experts of others yet, so the lists that vLLM chooses from are extended.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from enum import Enum
from typing import Any

NAME = "jitgen"

_ORACLES = {"unquantized": ("CPU", "TRITON"), "fp8": ("TRITON",)}
"""Modules that choose experts, and the backends whose weights stay as checkpoints have them."""

_logger = logging.getLogger(__name__)


def register() -> None:
    """
    Let vLLM choose jitgen's experts first, if ``VLLM_PLUGINS`` names them; again is as well.

    Raises:
        ImportError: This vLLM has not the modules that this was written for.
    """
    if NAME not in os.environ.get("VLLM_PLUGINS", "").split(","):
        _logger.info("VLLM_PLUGINS does not name %s: vLLM keeps its own experts", NAME)
        return
    for name, backends in _ORACLES.items():
        oracle: Any = importlib.import_module(f"vllm.model_executor.layers.fused_moe.oracle.{name}")
        choose = oracle.backend_to_kernel_cls
        if not hasattr(choose, NAME):
            oracle.backend_to_kernel_cls = extended(choose, backends)


def extended(
    choose: Callable[[Enum], list[type]], backends: tuple[str, ...]
) -> Callable[[Enum], list[type]]:
    """Return a function like `choose`, which puts jitgen's experts first for some backends."""

    def backend_to_kernel_cls(backend: Enum) -> list[type]:
        found = choose(backend)
        if backend.name not in backends:
            return found
        from jitgen.integrations.vllm_experts import JitgenExperts

        return [JitgenExperts, *found]

    setattr(backend_to_kernel_cls, NAME, True)
    return backend_to_kernel_cls
