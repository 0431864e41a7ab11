# SPDX-License-Identifier: Apache-2.0
"""
Other libraries' products with weights of four and eight bits on Hopper, for each format of the
hopper-fp4 suite.

They are part of two wheels, of which some files are sufficient: see docs/mxfp4-hopper.md. A peer
that is not installed, or that cannot compute a format or a case, is left out with a reason. Weights
are converted to a side's layout and activations are quantised before the side is timed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from jitgen.bench.hopper_fp4.plain import FORMS
from jitgen.bench.hopper_fp4.sides import Side
from jitgen.bench.peers import find_all as find_all_of
from jitgen.bench.peers import make
from jitgen.config import DType
from jitgen.config.prepacked import PrepackedFormat

_CLASSES = {
    "humming": "jitgen.bench.peers.humming:Humming",
    "marlin": "jitgen.bench.peers.marlin:Marlin",
    "triton_kernels": "jitgen.bench.peers.matmul_ogs:TritonKernels",
}

_Offer = tuple[str, str, DType]
"""A library, the format of weights and the type of tokens."""

MXFP4: dict[str, _Offer] = {
    "humming e4m3": ("humming", PrepackedFormat.MXFP4, DType.E4M3),
    "triton_kernels": ("triton_kernels", PrepackedFormat.MXFP4, DType.BF16),
    "marlin": ("marlin", PrepackedFormat.MXFP4, DType.BF16),
    "humming bf16": ("humming", PrepackedFormat.MXFP4, DType.BF16),
}
"""The peers with MXFP4 weights, by name."""

FORMATS: dict[str, _Offer] = {
    f"{form} {library} {tokens}": (library, form, tokens)
    for form in FORMS[1:]
    for tokens in (DType.E4M3, DType.BF16)
    for library in _CLASSES
}
"""Every library with every other format and either kind of tokens, by name."""

DISTRIBUTIONS = ("vllm", "humming-kernels", "triton")
"""Python distributions of the peers in this module."""


def find_all(*, formats: bool = False) -> tuple[list[Side], dict[str, str]]:
    """
    Return the available peers, and for each missing one the reason.

    Args:
        formats: Whether peers take part with weights in formats other than MXFP4, too.
    """
    offers = MXFP4 | (FORMATS if formats else {})
    return find_all_of(tuple(offers), partial(_find, offers))


def _find(offers: dict[str, _Offer], name: str) -> Any:
    library, *what = offers[name]
    return make(_CLASSES[library], name, *what)
