# SPDX-License-Identifier: Apache-2.0
"""
vLLM: jitgen's experts as the replacement of vLLM's, for bfloat16 weights and for FP8 weights with
scales for 128 x 128 blocks or for rows.

vLLM finds `register` as an entry point of ``vllm.general_plugins``. The function has an effect only
if ``VLLM_PLUGINS`` names ``jitgen``, so installing both packages alone changes nothing. vLLM has no
interface for experts of other packages yet; therefore the lists from which vLLM chooses are
extended. If ``VLLM_PLUGINS`` also names ``jitgen-ranks``, jitgen sends tokens to the experts of
other ranks.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

NAME, RANKS = "jitgen", "jitgen-ranks"

_Choose = Callable[[Enum], list[type]]
"""Lists the experts of a backend."""

_ORACLES = {"unquantized": ("CPU", "TRITON"), "fp8": ("TRITON",)}
"""Modules that choose experts, and the backends that keep weights in the layout of checkpoints."""

_MAKE = "maybe_make_prepare_finalize"
"""The function that returns, for a layer, the way in which tokens are sent to ranks."""

_REPACKED = {"mxfp4": "MXFP4", "nvfp4": "NVFP4", "mxfp8": "MXFP8", "int_wna16": "INT4"}
"""Modules that choose experts for weights which vLLM repacks for each of its kernels."""

_logger = logging.getLogger(__name__)
_for_users = logging.getLogger("vllm.jitgen")  # below vLLM's, whose handlers and level it has


def register() -> None:
    """
    Let vLLM choose jitgen's experts first, if ``VLLM_PLUGINS`` names jitgen. Further calls have no
    effect.

    Raises:
        ImportError: This vLLM lacks the modules for which this was written.
    """
    names = os.environ.get("VLLM_PLUGINS", "").split(",")
    if NAME not in names:
        _logger.info("VLLM_PLUGINS does not name %s: vLLM keeps its own experts", NAME)
        return
    for name, backends in _ORACLES.items():
        _extend(_oracle(name), partial(extended, backends=backends))
    for name, form in _REPACKED.items():
        with suppress(ImportError):  # not every vLLM has experts for every format
            _extend(_oracle(name), partial(telling, form=form))
    if RANKS in names:
        makers = importlib.import_module("vllm.model_executor.layers.fused_moe.all2all_utils")
        for module in (makers, *map(_oracle, _ORACLES)):
            make = getattr(module, _MAKE, None)  # which oracles have under the same name
            if make is not None and not hasattr(make, NAME):
                setattr(module, _MAKE, between_ranks(make))


def _oracle(name: str) -> Any:
    return importlib.import_module(f"vllm.model_executor.layers.fused_moe.oracle.{name}")


def _extend(oracle: Any, around: Callable[[_Choose], _Choose]) -> None:
    """Replace a module's function that lists experts by the result of `around` for it, once."""
    choose = oracle.backend_to_kernel_cls
    if not hasattr(choose, NAME):
        oracle.backend_to_kernel_cls = made = around(choose)
        setattr(made, NAME, True)


def extended(choose: _Choose, backends: tuple[str, ...]) -> _Choose:
    """Return a function like `choose`, which puts jitgen's experts first for some backends."""

    def backend_to_kernel_cls(backend: Enum) -> list[type]:
        found = choose(backend)
        if backend.name not in backends:
            return found
        from jitgen.integrations.vllm_experts import JitgenExperts

        return [JitgenExperts, *found]

    return backend_to_kernel_cls


def telling(choose: _Choose, form: str) -> _Choose:
    """
    Return a function like `choose` that logs once that jitgen has no experts with `form` weights.
    """
    told: list[str] = []

    def backend_to_kernel_cls(backend: Enum) -> list[type]:
        if not told:
            told.append(form)
            _for_users.warning(
                "jitgen does not compute layers with %s weights: vLLM repacks them for kernels of "
                "its own",
                form,
            )
        return choose(backend)

    return backend_to_kernel_cls


def between_ranks(make: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return a function like `make` that sends tokens with jitgen where vLLM would gather them from
    all ranks.
    """
    signature = inspect.signature(make)

    def maybe_make_prepare_finalize(*given: Any, **named: Any) -> Any:
        from jitgen.integrations.vllm_ranks import made

        asked = signature.bind(*given, **named).arguments
        ours = made(asked["moe"], asked["quant_config"], asked)
        return make(*given, **named) if ours is None else ours

    setattr(maybe_make_prepare_finalize, NAME, True)
    return maybe_make_prepare_finalize
