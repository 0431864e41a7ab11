# SPDX-License-Identifier: Apache-2.0
"""
Measurements of jitgen against its budgets.

Each suite is one module with a function ``rows``, which yields what it measured row by row. Nothing
is timed before its result was found right.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from jitgen.bench.protocol import Row

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
    "quantize": "MXFP8, MXFP4 and NVFP4 beside a copy and torch's operations.",
    "prepare": "Preparing MXFP4 weights for Hopper: seconds and memory.",
    "fc2": "FC2 of an MoE layer: one dense GEMM beside the grouped GEMM and a combine.",
}
"""Every suite and what it measures, in the order in which `all` runs them."""

REPORTS = {
    "hopper": "Grouped GEMMs from one token to prefill, beside peers; needs a GPU.",
    "blackwell": "Grouped GEMMs by experts, rows, N and K, beside peers; needs a GPU.",
}
"""Suites with a command and reports of their own, which `all` leaves out: see `suite`."""

HOPPER_FP4 = {
    "hopper-fp4": "MXFP4 weights on Hopper beside FP8 ones and peers; needs such a GPU.",
}
"""A suite with a room, a command and reports of its own: see `hopper_fp4`."""

KERNEL = {
    "kernel": "Kernels that you name, an edited one beside its original, on problems.",
}
"""A suite with arguments of its own: see `kernel`."""


def run(suite: str) -> Iterator[Row]:
    """
    Yield the rows of `suite`.

    Raises:
        KeyError: There is no such suite.
        NoDevice: It needs a GPU, and there is none.
        WrongResult: A kernel that was to be timed gave a wrong result.
    """
    if suite not in SUITES:
        raise KeyError(suite)
    yield from importlib.import_module(f"jitgen.bench.{suite}").rows()


__all__ = ["HOPPER_FP4", "KERNEL", "REPORTS", "SUITES", "Row", "run"]
