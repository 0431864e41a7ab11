# SPDX-License-Identifier: Apache-2.0
"""
Times the kernels of one problem in turn, for tuning and for surveys of the selector.

On a GPU each call of a batch has separate operands, because timing one launch after each flush
would favour kernels that stream past L2. Prefill is timed in loops of calls without pause. Kernels
that are much slower in a first short turn are not timed again.
"""

from __future__ import annotations

from collections.abc import Callable

from jitgen.autotune.measure.clock import Batch, Call, compete, compete_in_batches, sustain
from jitgen.autotune.measure.rotation import rotation
from jitgen.autotune.measure.workload import Workload

LONG_S = 5e-4
BUSY_FLOP_RATE = 0.5e15
"""
Calls with at least this time and this rate of operations are prefill: a model makes them for
seconds, and they bring the GPU to its power limit. So they are timed at that limit, and calls that
are bound by memory are not.
"""

CLOSE = 0.15
"""
A kernel that is slower by more than this part in a first short turn is not timed again. Turns of
one kernel differ by at most 5 %, and by 10 % at the power limit.
"""


def in_turn(
    calls_on: Callable[[Workload], list[Call]],
    workload: Workload,
    *,
    on_gpu: bool,
    loop_s: float = 0.2,
    rounds: int = 5,
) -> list[float]:
    """
    Return the median seconds of each kernel's call.

    Args:
        calls_on: Returns the calls of all kernels on given operands, always in the same order.
        workload: The operands; copies of them are called, too.
        on_gpu: Whether to measure device time.
        loop_s: Seconds of each loop of prefill, of which there are two for each kernel.
        rounds: Turns of each kernel, except for prefill.
    """
    if not on_gpu:
        return [each.median for each in compete(calls_on(workload), on_gpu=False)]
    of_sets = [calls_on(each) for each in rotation(workload)]
    batches = [Batch.capture(calls) for calls in zip(*of_sets, strict=True)]
    times = [each.median for each in compete_in_batches(batches, rounds=1, repetitions=2)]
    best = min(times)
    close = [place for place, each in enumerate(times) if each <= best * (1 + CLOSE)]
    if best >= LONG_S and workload.flop >= BUSY_FLOP_RATE * best:
        again = sustain([of_sets[0][place] for place in close], seconds=loop_s, rounds=2)
    else:
        again = compete_in_batches(
            [batches[place] for place in close], rounds=rounds, repetitions=2
        )
    for place, each in zip(close, again, strict=True):
        times[place] = each.median
    return times
