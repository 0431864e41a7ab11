# SPDX-License-Identifier: Apache-2.0
"""
Other implementations of the same product, each a class in its own module. jitgen does not need any
of these peers: a peer that is not installed, or that cannot compute a case, is left out with a
reason.

A peer's operands are prepared before it is timed, with scales in the layout that it requires;
conversions that a caller has to repeat for every call are part of its time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jitgen.config import DType, Layout, ScaleGranularity
from jitgen.errors import JitgenError

if TYPE_CHECKING:
    from jitgen.autotune.measure.workload import Workload
    from jitgen.bench.runner import Ready


class Unavailable(JitgenError):
    """A peer is not installed, or has no kernel for a case; the message says why."""


class Peer:
    """
    One implementation of the grouped product.

    Attributes:
        name: Its name in tables and JSON.
        note: Caveat for readers; empty if there is none.
        function: Name of its function in messages.
        has_same_numerics: Whether it computes the same as jitgen except for rounding, that is, uses
            the scales of blocks of 128.
        has_masked: Whether it has the masked layout.
    """

    name: str
    note: str = ""
    function: str = ""
    has_same_numerics: bool = True
    has_masked: bool = True

    def prepare(self, workload: Workload, expected_m: int) -> Ready:
        """
        Return the peer with the operands of `workload`: FP8 ones, with bfloat16 results.

        Args:
            workload: The operands.
            expected_m: Rows that a group is expected to have.

        Raises:
            Unavailable: It cannot compute this case.
        """
        problem = workload.problem
        is_fp8 = problem.a_dtype is DType.E4M3 and problem.out_dtype is DType.BF16
        require(is_fp8, f"{self.function} takes FP8 operands and gives bfloat16")
        has_layout = self.has_masked or problem.layout is not Layout.MASKED
        require(has_layout, f"{self.function} has no masked layout")
        has_scales = problem.scale_granularity is ScaleGranularity.BLOCK128
        require(
            has_scales or not self.has_same_numerics, f"{self.function} takes block128 scales alone"
        )
        return self.take(workload, expected_m)

    def take(self, workload: Workload, expected_m: int) -> Ready:
        """Return the peer for operands whose types it supports; raises as `prepare`."""
        raise NotImplementedError


_CLASSES: Mapping[str, str] = {
    "deep_gemm": "jitgen.bench.peers.deep_gemm:DeepGemm",
    "flashinfer": "jitgen.bench.peers.libraries:FlashInfer",
    "cublaslt": "jitgen.bench.peers.libraries:CublasLt",
    "torch_grouped": "jitgen.bench.peers.libraries:TorchGrouped",
    "triton": "jitgen.bench.peers.triton:Triton",
}

NAMES = tuple(_CLASSES)
"""Every peer, beginning with that of the targets."""

PEER = "deep_gemm"
"""The peer to which targets refer: it has the same numerics and is the fastest on Hopper."""


DISTRIBUTIONS = ("deep-gemm", "sgl-deep-gemm", "flashinfer-python", "triton")
"""Python distributions of the peers that most suites use."""


def make(path: str, *arguments: object) -> Any:
    """
    Return an instance of the class at ``module:Class``, made with `arguments`.

    Raises:
        Unavailable: What it needs is not installed.
    """
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)(*arguments)


def imported(module: str, what: str = "") -> Any:
    """
    Import and return a module of another library.

    Raises:
        Unavailable: It cannot be imported; the message calls it `what`.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{what or module} cannot be imported: {error}") from None


def require(has: object, reason: str) -> None:
    """
    Check that `has` holds.

    Raises:
        Unavailable: It does not hold; `reason` is the message.
    """
    if not has:
        raise Unavailable(reason)


def find(name: str) -> Peer:
    """
    Return the peer with a name of `NAMES`.

    Raises:
        Unavailable: What it needs is not installed.
    """
    peer: Peer = make(_CLASSES[name])
    return peer


def find_all(
    names: Sequence[str] = NAMES, find_one: Callable[[str], Any] = find
) -> tuple[list[Any], dict[str, str]]:
    """
    Return the peers with `names` that are available, and for each other one the reason.

    Args:
        names: Names of peers.
        find_one: Returns the peer with a name, or raises.
    """
    found: list[Any] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            found.append(find_one(name))
        except Unavailable as reason:
            missing[name] = str(reason)
        except Exception as error:  # others' code may raise anything, when it is imported too
            missing[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return found, missing
