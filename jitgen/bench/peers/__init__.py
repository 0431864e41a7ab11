# SPDX-License-Identifier: Apache-2.0
"""
Other implementations of the same product, each in a module of its own with one class.

No peer is needed to run jitgen: one that is not installed, or that cannot compute a case, is left
out with a reason. A peer's operands are prepared before its clock starts, scales in the layout that
it wants; what it must do at every call is in its time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jitgen.autotune.measure.clock import Call
from jitgen.errors import JitgenError
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.autotune.measure.workload import Workload


class Unavailable(JitgenError):
    """A peer is not installed, or has no kernel for a case; the message says why."""


@frozen
class Prepared:
    """
    A peer with the operands of one workload.

    Attributes:
        call: Enqueues the product.
        check: Compares the result of the last `call` with the reference. Raises WrongResult.
        padding: Enqueues what brings the operands into the form that `call` reads, where a caller
            would have to do so for each product; None where there is nothing to do.
    """

    call: Call
    check: Call
    padding: Call | None = None


class Peer(Protocol):
    """
    One implementation.

    Attributes:
        name: What tables and JSON call it.
        note: What a reader must know of it, if anything.
        has_same_numerics: Whether it computes the same as jitgen but for rounding.
    """

    name: str
    note: str
    has_same_numerics: bool

    def prepare(self, workload: Workload, expected_m: int) -> Prepared:
        """
        Return the peer with the operands of `workload`.

        Args:
            workload: The operands.
            expected_m: Rows that a group is expected to have.

        Raises:
            Unavailable: It cannot compute this case.
        """
        ...


_CLASSES: Mapping[str, str] = {
    "deep_gemm": "jitgen.bench.peers.deep_gemm:DeepGemm",
    "flashinfer": "jitgen.bench.peers.flashinfer:FlashInfer",
    "cublaslt": "jitgen.bench.peers.cublaslt:CublasLt",
    "torch_grouped": "jitgen.bench.peers.torch_grouped:TorchGrouped",
    "triton": "jitgen.bench.peers.triton:Triton",
}

NAMES = tuple(_CLASSES)
"""Every peer, the one that counts most first."""

PEER = "deep_gemm"
"""The peer that targets speak of: same numerics, and the fastest on Hopper."""


DISTRIBUTIONS = ("deep-gemm", "sgl-deep-gemm", "flashinfer-python", "triton")
"""What most suites' peers come with."""


T = TypeVar("T")


def versions(distributions: Sequence[str] = DISTRIBUTIONS) -> dict[str, str]:
    """Return the versions of what peers come with, of those that are installed."""
    found = {}
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def find(name: str) -> Peer:
    """
    Return a peer.

    Raises:
        Unavailable: What it needs is not installed.
    """
    peer: Peer = make(_CLASSES[name])
    return peer


def make(path: str) -> Any:
    """
    Return an instance of the class at ``module:Class``.

    Raises:
        Unavailable: What it needs is not installed.
    """
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)()


def find_all(names: tuple[str, ...] = NAMES) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers among `names` that are here, and for the others why they are not."""
    return gather({name: partial(find, name) for name in names})


def gather(makers: Mapping[str, Callable[[], T]]) -> tuple[list[T], dict[str, str]]:
    """Return what `makers` make, and for those that cannot, under their names, why."""
    found: list[T] = []
    missing: dict[str, str] = {}
    for name, maker in makers.items():
        try:
            found.append(maker())
        except Unavailable as reason:
            missing[name] = str(reason)
        except Exception as error:  # others' code may raise anything, when it is imported too
            missing[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return found, missing
