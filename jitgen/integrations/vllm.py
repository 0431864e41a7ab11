# SPDX-License-Identifier: Apache-2.0
"""
vLLM: jitgen's experts as the replacement of vLLM's, for bfloat16 weights, for FP8 weights with
scales for 128 x 128 blocks or for rows, and for packed weights (`jitgen.integrations.vllm_packed`).

vLLM finds `register` as an entry point of ``vllm.general_plugins``. The function has an effect only
if ``VLLM_PLUGINS`` names ``jitgen``, so installing both packages alone changes nothing. vLLM has no
interface for experts of other packages yet; therefore the functions by which vLLM chooses experts
are replaced. If ``VLLM_PLUGINS`` also names ``jitgen-ranks``, jitgen sends tokens to the experts of
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

from jitgen.integrations import vllm_packed
from jitgen.integrations.vllm_packed import oracle, replace

NAME, RANKS = "jitgen", "jitgen-ranks"

_Choose = Callable[[Enum], list[type]]
"""Lists the experts of a backend."""

_ORACLES = {"unquantized": ("CPU", "TRITON"), "fp8": ("TRITON",)}
"""Modules that choose experts, and the backends that keep weights in the layout of checkpoints."""

_LIST = "backend_to_kernel_cls"
"""The function of these modules that lists the experts of a backend."""

_ORDER = "_get_priority_backends"
"""The function of the module for FP8 that returns backends in the order in which they are tried."""

_MAKE = "maybe_make_prepare_finalize"
"""The function that returns, for a layer, the way in which tokens are sent to ranks."""

_OTHERS = {"int8": "INT8", "w4a8": "INT4 (FP8 tokens)", "w4a8_int8": "INT4 (INT8 tokens)"}
"""Modules that choose experts for weights that jitgen does not compute."""

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
    if hasattr(getattr(oracle("unquantized"), _LIST, None), NAME):
        return
    for name, backends in _ORACLES.items():
        replace(oracle(name), _LIST, partial(extended, backends=backends))
    replace(oracle("fp8"), _ORDER, _sooner)
    for form in vllm_packed.register():
        _for_users.warning(
            "jitgen does not compute layers with %s weights: this vLLM has no functions of the "
            "names that vLLM 0.32 has",
            form,
        )
    for name, form in _OTHERS.items():
        with suppress(ImportError):  # not every vLLM has experts for every format
            replace(oracle(name), _LIST, partial(telling, form=form))
    if RANKS in names:
        makers = importlib.import_module("vllm.model_executor.layers.fused_moe.all2all_utils")
        replace(makers, _MAKE, between_ranks)


def extended(choose: _Choose, backends: tuple[str, ...]) -> _Choose:
    """Return a function like `choose`, which puts jitgen's experts first for some backends."""

    def backend_to_kernel_cls(backend: Enum) -> list[type]:
        found = choose(backend)
        if backend.name not in backends:
            return found
        from jitgen.integrations.vllm_experts import JitgenExperts

        return [JitgenExperts, *found]

    return backend_to_kernel_cls


def _sooner(order: Callable[..., list[Enum]]) -> Callable[..., list[Enum]]:
    """
    Return a function like `order`, which lists the backend with jitgen's experts first if they
    compute the layer.
    """

    def get_priority_backends(moe_config: Any, weight_key: Any, activation_key: Any) -> list[Enum]:
        from jitgen.integrations.vllm_experts import JitgenExperts, fits

        found = order(moe_config, weight_key, activation_key)
        if not fits(JitgenExperts, moe_config, weight_key, activation_key):
            return found
        return sorted(found, key=lambda each: each.name not in _ORACLES["fp8"])

    return get_priority_backends


def telling(choose: _Choose, form: str) -> _Choose:
    """
    Return a function like `choose` that logs once that jitgen has no experts with `form` weights.
    """
    told: list[str] = []

    def backend_to_kernel_cls(backend: Enum) -> list[type]:
        if not told:
            told.append(form)
            _for_users.warning(
                "jitgen does not compute layers with %s weights: it has no kernels for them", form
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

    return maybe_make_prepare_finalize
