# SPDX-License-Identifier: Apache-2.0
"""
Memory of each rank that all ranks of a host can access: torch's symmetric memory on GPUs,
memory-mapped files on a CPU.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

_PLACES = (Path("/dev/shm"), Path(tempfile.gettempdir()))  # noqa: S108  # of Linux; of others
_NAME_BYTES = 16
_Made = TypeVar("_Made")


class Shared(NamedTuple):
    """
    One buffer on each rank, which all ranks can access.

    Attributes:
        own: The buffer of this rank: uint8, zeros.
        addresses: Addresses of the buffers of all ranks in this process, by rank.
        keeps: Object that must live as long as the buffers are used.
    """

    own: Tensor
    addresses: list[int]
    keeps: object

    def parts(self, count: int) -> list[Shared]:
        """Return `count` buffers of equal size on each rank, of which this one consists."""
        nbytes = self.own.numel() // count
        return [
            Shared(
                self.own[first : first + nbytes],
                [each + first for each in self.addresses],
                self.keeps,
            )
            for first in range(0, count * nbytes, nbytes)
        ]


def shared(nbytes: int, group: ProcessGroup, device: torch.device) -> Shared | str:
    """
    Return a buffer of `nbytes` on every rank, or the reason why it cannot be had. All ranks of the
    group call this.
    """
    return (_of_gpus if device.type == "cuda" else _of_files)(nbytes, group, device)


def least(numbers: list[int], group: ProcessGroup, device: torch.device) -> list[int]:
    """Return the minimum over all ranks of each number."""
    found = torch.tensor(numbers, dtype=torch.int64, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MIN, group=group)
    return found.tolist()


def _all_can(
    step: Callable[[], _Made], group: ProcessGroup, device: torch.device
) -> tuple[_Made | None, str]:
    """Do a step on each rank; return its result, and a reason if it failed on any rank."""
    made, trouble = None, ""
    try:
        made = step()
    except (RuntimeError, OSError) as error:
        trouble = str(error).partition("\n")[0]
    if not least([not trouble], group, device)[0]:
        return made, trouble or "another rank cannot share its memory"
    return made, ""


def _of_gpus(nbytes: int, group: ProcessGroup, device: torch.device) -> Shared | str:
    from torch.distributed import _symmetric_memory as symmetric

    def make() -> Shared:
        own = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(own, group)
        own.zero_()
        torch.cuda.synchronize(device)  # before a peer writes
        return Shared(own, [int(each) for each in handle.buffer_ptrs], handle)

    made, trouble = _all_can(make, group, device)
    return trouble if made is None or trouble else made


def _of_files(nbytes: int, group: ProcessGroup, device: torch.device) -> Shared | str:
    """
    Map one file per rank. Other users cannot guess its name, which is removed once all ranks have
    mapped it.
    """
    place = next(each for each in _PLACES if each.is_dir())
    name = torch.tensor(list(secrets.token_bytes(_NAME_BYTES)), dtype=torch.uint8)
    dist.broadcast(name, group_src=0, group=group)
    common = bytes(name.tolist()).hex()
    paths = [place / f"jitgen-{common}-{rank}" for rank in range(group.size())]
    mine = paths[group.rank()]

    def map_one(path: Path) -> Tensor:  # zeros, where the file is new
        return torch.from_file(str(path), shared=True, size=nbytes, dtype=torch.uint8)

    def make() -> None:
        file = os.open(mine, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:  # an error where there is no room: a page that cannot be had would end the process
            os.posix_fallocate(file, 0, nbytes)
        finally:
            os.close(file)
        map_one(mine)

    def map_all() -> list[Tensor]:
        return [map_one(path) for path in paths]

    mapped = None
    try:
        _, trouble = _all_can(make, group, device)
        if not trouble:
            mapped, trouble = _all_can(map_all, group, device)
    finally:
        mine.unlink(missing_ok=True)
    if mapped is None or trouble:
        return trouble
    return Shared(mapped[group.rank()], [each.data_ptr() for each in mapped], mapped)
