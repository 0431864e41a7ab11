# SPDX-License-Identifier: Apache-2.0
"""
Windows: memory of each device that all devices can access, each device at different addresses.

Symmetric memory gives a rank its own buffer and, for each peer, an address at which the rank
accesses that peer's buffer. A buffer is in the memory of its tensor. The addresses that peers use
are not used for anything else, so a kernel that confuses the addresses of two devices accesses
invalid memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgen.emulator.host.tensors import OnGpu, Tensor, addresses, span
from jitgen.errors import InputError

_FIRST, _STEP = 1 << 50, 1 << 21
"""Above all memory of the host, and below where shared memory is seen; windows begin far apart."""

_PAGE = 1 << 12

_next = [_FIRST]
"""Address of the next window."""


class Window:
    """
    A buffer on each device.

    Attributes:
        tensors: The tensor of each device, by its number, all of one size.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """
        Make tensors, which are in host memory, accessible to all devices.

        Raises:
            InputError: The tensors have different sizes in bytes, or none, or there are no tensors.
        """
        sizes = {span(tensor) for tensor in tensors}
        if len(sizes) != 1 or not min(sizes):
            raise InputError("tensors", f"must be of one size, not empty (got {sorted(sizes)})")
        self.tensors = tuple(tensors)
        room = (min(sizes) + _PAGE + _STEP - 1) // _STEP * _STEP
        count = len(self.tensors)
        starts = range(_next[0], _next[0] + room * count * count, room)
        self._seen = [starts[count * on :][:count] for on in range(count)]
        _next[0] += room * count * count

    def address(self, *, of: int, on: int) -> int:
        """Return the address at which device `on` sees the buffer of device `of`."""
        own = self.tensors[of].data_ptr()
        return own if of == on else self._seen[on][of] + own % _PAGE

    def seen(self, *, of: int, on: int) -> Tensor | OnGpu:
        """Return the buffer of device `of` as an argument of a call on device `on`."""
        tensor = self.tensors[of]
        return tensor if of == on else OnGpu(tensor, address=self.address(of=of, on=on))

    def table(self, *, on: int) -> Tensor:
        """Return the addresses of all buffers as device `on` sees them, int64 [devices]."""
        return addresses([self.address(of=of, on=on) for of in range(len(self.tensors))])
