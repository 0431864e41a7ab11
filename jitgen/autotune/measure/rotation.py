# SPDX-License-Identifier: Apache-2.0
"""The number of sets of operands for a fair measurement of device time."""

from __future__ import annotations

from jitgen.autotune.measure.workload import Workload

_COPY_RATE = 4.2e12
_FLOP_RATE = 1.2e15
"""About what an H200 reaches, in bytes and operations a second: enough to guess a call's time."""

_ENOUGH_S = 1e-3
"""Total device time that the calls between two events should take."""

_FEWEST, _MOST = 2, 8
_MOST_BYTES = 16 * 2**30


def rotation(workload: Workload) -> list[Workload]:
    """
    Return `workload` and copies of it, for calls that are timed one after the other.

    There are at least two if memory suffices: the speed of reading depends on the addresses of
    operands, and a kernel that streams past L2 is up to 7 % faster directly after a flush than
    after another kernel.
    """
    seconds = max(workload.num_bytes / _COPY_RATE, workload.flop / _FLOP_RATE, 1e-9)
    held = sum(x.nbytes for x in (workload.a, workload.b, workload.out))
    wanted = min(max(round(_ENOUGH_S / seconds), _FEWEST), _MOST)
    count = max(1, min(wanted, _MOST_BYTES // held))
    return [workload, *(workload.copy() for _ in range(count - 1))]
