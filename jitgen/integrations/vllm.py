# SPDX-License-Identifier: Apache-2.0
"""
vLLM: jitgen's experts in the place of its own, for bfloat16 and for FP8 with scales for 128 x 128
or for rows.

vLLM finds `register` as an entry point of ``vllm.general_plugins``, and it does something only
where ``VLLM_PLUGINS`` names ``jitgen``: to have both installed changes nothing. There is no
interface for experts of others yet, so the lists that vLLM chooses from are extended. Where
``VLLM_PLUGINS`` names ``jitgen-ranks``, too, tokens travel to the experts of other ranks by jitgen.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from collections.abc import Callable
from enum import Enum
from typing import Any

NAME, RANKS = "jitgen", "jitgen-ranks"

_ORACLES = {"unquantized": ("CPU", "TRITON"), "fp8": ("TRITON",)}
"""Modules that choose experts, and the backends whose weights stay as checkpoints have them."""

_MAKE = "maybe_make_prepare_finalize"
"""What returns, for a layer, how tokens come to ranks."""

_logger = logging.getLogger(__name__)


def register() -> None:
    """
    Let vLLM choose jitgen's experts first, if ``VLLM_PLUGINS`` names them; again is as well.

    Raises:
        ImportError: This vLLM has not the modules that this was written for.
    """
    names = os.environ.get("VLLM_PLUGINS", "").split(",")
    if NAME not in names:
        _logger.info("VLLM_PLUGINS does not name %s: vLLM keeps its own experts", NAME)
        return
    package = "vllm.model_executor.layers.fused_moe"
    oracles: list[Any] = [importlib.import_module(f"{package}.oracle.{name}") for name in _ORACLES]
    for oracle, backends in zip(oracles, _ORACLES.values(), strict=True):
        choose = oracle.backend_to_kernel_cls
        if not hasattr(choose, NAME):
            oracle.backend_to_kernel_cls = extended(choose, backends)
    if RANKS in names:
        for module in (importlib.import_module(f"{package}.all2all_utils"), *oracles):
            make = getattr(module, _MAKE, None)  # which oracles have under the same name
            if make is not None and not hasattr(make, NAME):
                setattr(module, _MAKE, between_ranks(make))


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


def between_ranks(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function like `make`, which lets tokens travel by jitgen where ranks gather them."""
    signature = inspect.signature(make)

    def maybe_make_prepare_finalize(*given: Any, **named: Any) -> Any:
        from jitgen.integrations.vllm_ranks import made

        asked = signature.bind(*given, **named).arguments
        ours = made(asked["moe"], asked["quant_config"], asked)
        return make(*given, **named) if ours is None else ours

    setattr(maybe_make_prepare_finalize, NAME, True)
    return maybe_make_prepare_finalize
