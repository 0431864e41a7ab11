# SPDX-License-Identifier: Apache-2.0
"""
Measurements of jitgen against its budgets.

A suite is a function that yields what it measured row by row, or a
`jitgen.bench.suite.Suite`, which keeps a report. Nothing is timed before its result is right.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from jitgen.bench.protocol import Row

if TYPE_CHECKING:
    from jitgen.bench.suite import Suite

SUITES = {
    "dispatch": "Host time of warm calls above the bare tvm-ffi call.",
    "start": "A fresh process: from after `import torch` to the first right result.",
    "pod": "A pod's start to its first right result, by where its kernel comes from.",
    "load": "Warm load of one kernel from disk, digest check included.",
    "cold": "What a compile costs beyond the compiler: render, key, lock, publish.",
    "cache": "Light commands: `jitgen cache stats` with 10,000 entries, `import jitgen`.",
    "prewarm": "Kernels a minute, compiled by two processes.",
    "emulator": "The emulator: seconds and memory for one kernel.",
    "gemm": "Device time of GPU kernels; needs a GPU.",
    "silu": "SwiGLU and its quantisation beside a copy and torch's inductor.",
    "glue": "What an MoE layer does around its GEMMs, beside a copy and torch.",
    "quantize": "MXFP8, MXFP4 and NVFP4 beside a copy and torch's operations.",
    "prepare": "Prepacking MXFP4 weights for Hopper: seconds and memory.",
    "unpack": "Unpacking prepacked MXFP4 weights to FP8 ones beside a copy.",
    "invariance": "What rows with the same bits in every batch cost; needs a GPU.",
    "fc2": "FC2 of an MoE layer: one dense GEMM beside the grouped GEMM and a combine.",
}
"""Every suite and what it measures, in the order in which `all` runs them."""

REPORTS = {
    "hopper": "Grouped GEMMs from one token to prefill, beside peers; needs a GPU.",
    "blackwell": "Grouped GEMMs by experts, rows, N and K, beside peers; needs a GPU.",
}
"""Suites of grouped GEMMs, which keep a report and which `all` leaves out."""

OWN = {
    "hopper-fp4": "MXFP4 weights on Hopper beside FP8 ones and peers; needs such a GPU.",
    "gradients": "Gradients of bfloat16 products, and steps of a layer, beside torch; needs a GPU.",
    "choice": "What the selector's choice loses to the best of its candidates; needs a GPU.",
    "kernel": "Kernels that you name, an edited one beside its original, on problems.",
    "plan": "The kernels of a plan, weighted by how often each is called.",
    "layer": "A whole layer of experts, decode to prefill, beside torch and others; needs a GPU.",
    "transformers": "Models of transformers with jitgen's experts beside its own; needs a GPU.",
}
"""Suites with options of their own, which `all` leaves out too."""

_FUNCTIONS = {
    **dict.fromkeys(("start", "cache", "emulator", "prepare"), "processes"),
    **dict.fromkeys(("load", "cold", "prewarm"), "compiles"),
    "invariance": "gemm",
    **dict.fromkeys(("quantize", "unpack"), "quantize"),
}
"""Modules with a function for each of their suites; others have one, called ``rows``."""

_PACKAGES = {
    "hopper-fp4": "jitgen.bench.hopper_fp4",
    "choice": "jitgen.bench.choice",
    "layer": "jitgen.bench.layer",
    "transformers": "jitgen.bench.transformers",
}


def run(suite: str, **options: object) -> Iterator[Row]:
    """
    Yield the rows of `suite`.

    Raises:
        KeyError: No suite with this name yields rows.
        NoDevice: The suite needs a GPU, and there is none.
        WrongResult: A kernel that was to be timed gave a wrong result.
    """
    if suite not in (*SUITES, "gradients"):
        raise KeyError(suite)
    yield from function_of(suite)(**options)


def function_of(suite: str) -> Callable[..., Iterator[Row]]:
    """Return the function that yields the rows of `suite`."""
    module = importlib.import_module(f"jitgen.bench.{_FUNCTIONS.get(suite, suite)}")
    found: Callable[..., Iterator[Row]] = getattr(module, suite if suite in _FUNCTIONS else "rows")
    return found


def find(name: str) -> Suite:
    """
    Return a suite that keeps a report.

    Raises:
        KeyError: No suite with this name keeps a report.
    """
    if name in REPORTS:
        grouped: Suite = importlib.import_module("jitgen.bench.grouped").SUITES[name]
        return grouped
    found: Suite = importlib.import_module(f"{_PACKAGES[name]}.run").SUITE
    return found


__all__ = ["OWN", "REPORTS", "SUITES", "Row", "find", "function_of", "run"]
