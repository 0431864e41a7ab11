# SPDX-License-Identifier: Apache-2.0
"""
Detects whether tensors have changed since a cached value was made from them.

A cached value refers to the memory of tensors, or copies their values. A reference becomes invalid
if a tensor gets other memory, sizes, strides or another type: `Places` detects that. A copy also
becomes invalid if the tensor is written to: `Versions` detects that as far as torch counts writes.
Every value that is made from tensors and kept after a call has one of the two; without them it is
made again at each call.

torch does not count these writes: through ``.data`` or ``.numpy()``, by kernels that got an address
(some optimisers, the gathering of FSDP), and by a CUDA graph that is replayed. So a copy is cached
only if the user requested it.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ref

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from jitgen.ops.dispatcher import is_traced


class Places:
    """
    Memory, shape and type of some tensors at one time.

    The object that stores this one must also keep that memory alive, for example by a ``detach()``,
    so that the address identifies the memory.

    Args:
        tensors: The tensors that the cached value refers to; None for an absent one.
    """

    __slots__ = ("_places",)

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self._places = tuple(map(_place, tensors))

    def hold(self, tensors: Sequence[Tensor | None]) -> bool:
        """Return whether `tensors` are at the same places, in the same number and order."""
        return self._places == tuple(map(_place, tensors))


class Versions:
    """
    Places of the tensors from which a value was made, and torch's count of writes to each.

    It holds weak references to the tensors and their memory. Because of these,
    `torch.utils.swap_tensors` refuses the tensors.
    """

    __slots__ = ("_marks", "_places")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._places = Places(tensors)
        self._marks = tuple(
            (ref(each), each._version, StorageWeakRef(each.untyped_storage())) for each in tensors
        )

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Versions | None:
        """
        Return the versions of `tensors`; None if a value made from them must not be cached: torch
        counts no writes to tensors of inference mode, tensors of a tracer have no values, and while
        a CUDA graph is captured, tensors get their values only at a replay.
        """
        if any(each.is_inference() for each in tensors) or is_traced(tensors):
            return None
        is_capturing = any(each.is_cuda for each in tensors) and (
            torch.cuda.is_current_stream_capturing()
        )
        return None if is_capturing else cls(tensors)

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        """
        Say whether `tensors` are the same objects with the same values, as far as torch counts
        writes.
        """
        if len(tensors) != len(self._marks) or not self._places.hold(tensors):
            return False
        return all(
            # A dead reference matches nothing, so no other object with its number is taken for it;
            # nor is other memory at its address, while what was there is not given back.
            one() is each and each._version == version and not memory.expired()
            for each, (one, version, memory) in zip(tensors, self._marks, strict=True)
        )


def _place(tensor: Tensor | None) -> tuple[object, ...] | None:
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
