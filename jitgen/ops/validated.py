# SPDX-License-Identifier: Apache-2.0
"""What the rules about the arguments of all operations begin and end with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor

from jitgen.config import Arch
from jitgen.errors import InputError
from jitgen.ops.tensors import check_memory, require
from jitgen.runtime import devices
from jitgen.runtime.devices import Device
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen
from jitgen.targets.legality import rules, size_refusal, target


@frozen
class AnyValidated:
    """
    What follows from valid arguments; a tracer's sizes may be symbols.

    Attributes:
        op: The operation.
        device: What serves the tensors.
    """

    op: ClassVar[str]
    device: Device

    @property
    def arch(self) -> Arch:
        """The target."""
        return self.device.arch


def device_of(op: str, name: str, like: Tensor, session: Session) -> Device:
    """
    Return what serves a call of `op` where `like` is.

    Args:
        op: The operation.
        name: The argument that `like` is.
        like: A tensor of the call.
        session: What serves calls.

    Raises:
        InputError: `like` is no tensor, or no kernel of `op` is for its device.
    """
    require(name, like)
    device = devices.find(like.device, session, name)
    if op not in target(device.arch).operations:
        raise InputError(name, f"must be on a device with kernels of {op} (got {device.arch})")
    return device


def check_size(valid: Any, name: str) -> None:
    """Require sizes that kernels serve; `name` is the argument whose sizes they are."""
    if reason := size_refusal(valid, valid.arch):
        raise InputError(name, reason)


def check_vectors(args: Any, valid: Any, names: Iterable[str], *, has_memory: bool) -> None:
    """
    Require memory that kernels read and write vectors of, beside the first of the tensors.

    Args:
        args: The arguments of the call.
        valid: What follows from them.
        names: The tensors; one that is None counts as good.
        has_memory: Whether tensors have addresses; a tracer's have none.
    """
    alignment = rules(valid.arch, valid.op).alignment
    tensors = [(name, getattr(args, name), alignment) for name in names]
    first, like, _ = tensors[0]
    check_memory(tensors, (first, like.device), has_memory=has_memory)
