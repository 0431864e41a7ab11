# SPDX-License-Identifier: Apache-2.0
"""
Timing of competing functions: in turn, with medians of rounds, on a GPU with an empty L2.

Figures are medians, because other work of the machine slows some repetitions down and never makes
one much faster. Functions run in turn (ABAB), because clocks and temperature drift and all
functions must be affected alike.

Before each timed launch on a GPU 512 MB are read, so that no operand is left in L2. They are read
and not written: lines that have to be written back would slow the next launch down. During the read
the host has time to enqueue the event and the launch, so the time does not include work of the
host.

`compete` times one launch after each flush. That is simple, but differs from a model: the two
events cost about 2 us, operands are always at the same addresses, and a kernel that streams past L2
finds it full of lines that no kernel needs, so it is up to 7 % faster than after another kernel.
`compete_in_batches` times several launches after each flush, each on separate operands that were
not read since: all launches are cold, and most follow another kernel. They are captured in a CUDA
graph, as in a model, so that even a slow host keeps the GPU busy.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jitgen.autotune.measure.errors import NoDevice
from jitgen.autotune.measure.times import Times
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 512 * 2**20
"""Bytes read to empty L2: ten times the size of the largest L2."""

Call = Callable[[], object]
"""A function to time, called without arguments; on a GPU it enqueues work on the current stream."""


def has_gpu() -> bool:
    """Return whether there is a GPU that jitgen uses by default."""
    import torch

    from jitgen.targets.devices import default_arch

    return torch.cuda.is_available() and default_arch().is_gpu


def require_gpu(what: str) -> None:
    """
    Check that there is a GPU to measure on.

    Raises:
        NoDevice: This machine has no such GPU; the message says that `what` needs it.
    """
    if not has_gpu():
        raise NoDevice(f"{what} needs a GPU that jitgen has kernels for")


@frozen
class Batch:
    """
    Calls of one kind whose operands share no memory, captured in a CUDA graph.

    Attributes:
        calls: The calls, which keep their operands alive.
        replay: Function that makes all calls of the batch.
    """

    calls: tuple[Call, ...]
    replay: Call

    @classmethod
    def capture(cls, calls: Sequence[Call]) -> Batch:
        """
        Make each of `calls` once, then capture them.

        Raises:
            RuntimeError: A call does something that cannot be captured in a graph.
        """
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls:
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        return cls(calls=tuple(calls), replay=graph.replay)


def compete(
    functions: Sequence[Call],
    *,
    rounds: int = 5,
    repetitions: int = 4,
    warmup: int = 1,
    on_gpu: bool | None = None,
) -> list[Times]:
    """
    Time `functions` in turn, each launch with a cold L2; on a CPU, each call.

    Args:
        functions: Functions to time.
        rounds: Number of rounds; each function has one turn in each.
        repetitions: Launches in a turn; the turn's figure is their median.
        warmup: First turns of each function, which do not count.
        on_gpu: Whether to measure device time; None: if there is a GPU.

    Returns:
        For each function its seconds a call, one figure for each round.
    """
    if has_gpu() if on_gpu is None else on_gpu:
        return _on_device([(each, 1) for each in functions], rounds, repetitions, warmup)
    times = compete_on_host(functions, repetitions=(warmup + rounds) * repetitions, warmup=0)
    return [_medians(each.seconds, repetitions, warmup) for each in times]


def compete_in_batches(
    batches: Sequence[Batch], *, rounds: int = 5, repetitions: int = 4, warmup: int = 1
) -> list[Times]:
    """
    Time batches of calls in turn, each replay with a cold L2. The result is in seconds per call.

    Args:
        batches: For each competitor the same number of calls.
        rounds: As in `compete`.
        repetitions: As for `compete`; each replays a whole batch.
        warmup: As in `compete`.
    """
    replays = [(batch.replay, len(batch.calls)) for batch in batches]
    return _on_device(replays, rounds, repetitions, warmup)


def sustain(
    functions: Sequence[Call],
    *,
    seconds: float = 1.0,
    rounds: int = 3,
    during: Call | None = None,
) -> list[Times]:
    """
    Time `functions` in loops of calls without pause, about `seconds` long: at the power limit, with
    a warm L2.

    Args:
        functions: Functions to time.
        seconds: Approximate duration of each loop.
        rounds: Number of loops of each function, in turn.
        during: Called while the device still works on a loop, for example to look at its clock.

    Returns:
        For each function its seconds a call, one figure for each loop.
    """
    import torch

    counts = [
        max(1, round(seconds / times.median)) for times in compete(functions, rounds=1, on_gpu=True)
    ]
    found: list[list[float]] = [[] for _ in functions]
    with _no_garbage():
        for _ in range(rounds):
            for function, count, each in zip(functions, counts, found, strict=True):
                start, end = _event(), _event()
                start.record()
                for _ in range(count):
                    function()
                end.record()
                if during is not None:
                    during()
                torch.cuda.synchronize()
                each.append(start.elapsed_time(end) * 1e-3 / count)
    return [Times(seconds=tuple(each)) for each in found]


def compete_on_host(
    functions: Sequence[Call],
    *,
    calls: int = 1,
    repetitions: int = 21,
    warmup: int = 3,
    between: Call | None = None,
) -> list[Times]:
    """
    Return the host time of each of `functions`, measured in turn, in seconds per call.

    The garbage collector is off during the measurement: it would add the cost of one side's
    allocations to another side's time.

    Args:
        functions: Functions to time.
        calls: Calls per repetition, for calls that are too short for the clock.
        repetitions: Timed repetitions of each.
        warmup: Repetitions before those, which do not count.
        between: Called, untimed, before every repetition, for example to wait for the device.
    """
    seconds: list[list[float]] = [[] for _ in functions]
    with _no_garbage():
        for repetition in range(warmup + repetitions):
            for function, found in zip(functions, seconds, strict=True):
                if between is not None:
                    between()
                start = time.perf_counter()
                for _ in range(calls):
                    function()
                elapsed = (time.perf_counter() - start) / calls
                if repetition >= warmup:
                    found.append(elapsed)
    return [Times(seconds=tuple(found)) for found in seconds]


def _on_device(
    timed: Sequence[tuple[Call, int]], rounds: int, repetitions: int, warmup: int
) -> list[Times]:
    """Time calls, each given with the number of launches that it makes."""
    import torch

    flush = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    events: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in timed]
    with _no_garbage():
        for turn in range(warmup + rounds):
            for place in range(len(timed)):
                # Each round begins with another side: one that follows a cool side runs faster.
                side = (turn + place) % len(timed)
                (call, _), found = timed[side], events[side]
                for _ in range(repetitions):
                    start, end = _event(), _event()
                    flush.max()
                    start.record()
                    call()
                    end.record()
                    found.append((start, end))
        torch.cuda.synchronize()
    return [
        _medians(
            [start.elapsed_time(end) * 1e-3 / launches for start, end in found],
            repetitions,
            warmup,
        )
        for (_, launches), found in zip(timed, events, strict=True)
    ]


def _event() -> torch.cuda.Event:
    import torch

    return torch.cuda.Event(enable_timing=True)


def _medians(seconds: Sequence[float], repetitions: int, warmup: int) -> Times:
    """Return the median of every `repetitions` figures, without the first `warmup` of those."""
    turns = [
        statistics.median(seconds[first : first + repetitions])
        for first in range(warmup * repetitions, len(seconds), repetitions)
    ]
    return Times(seconds=tuple(turns))


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Switch the garbage collector off within a with block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
