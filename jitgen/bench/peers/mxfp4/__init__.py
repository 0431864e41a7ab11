# SPDX-License-Identifier: Apache-2.0
"""
Others who multiply MXFP4 weights on Hopper, each in a module of its own with one class.

They come out of two wheels, and of those some files are enough: see docs/mxfp4-hopper.md. One that
is not installed, or that cannot compute a case, is left out with a reason. Weights are brought into
a side's own layout before its clock starts, and activations are quantised.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from jitgen.bench.hopper_fp4.sides import Side
from jitgen.bench.peers import Unavailable
from jitgen.bench.peers import find_all as find_all_of

_CLASSES: Mapping[str, str] = {
    "humming e4m3": "jitgen.bench.peers.mxfp4.humming:HummingE4m3",
    "triton_kernels": "jitgen.bench.peers.mxfp4.triton_kernels:TritonKernels",
    "marlin": "jitgen.bench.peers.mxfp4.marlin:Marlin",
    "humming bf16": "jitgen.bench.peers.mxfp4.humming:HummingBf16",
}

NAMES = tuple(_CLASSES)

DISTRIBUTIONS = ("vllm", "humming-kernels", "triton")
"""What they come with."""


def find_all() -> tuple[list[Side], dict[str, str]]:
    """Return those that are here, and for the others why they are not."""
    return find_all_of(NAMES, _CLASSES)


def folder_of_vllm() -> Path:
    """
    Return the folder of vLLM, without importing it: its parts are used alone.

    Raises:
        Unavailable: There is none.
    """
    spec = importlib.util.find_spec("vllm")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise Unavailable("vllm is not installed, nor the files of it that are used")
    return Path(places[0])
