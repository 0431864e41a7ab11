# SPDX-License-Identifier: Apache-2.0
"""
Launches of kernels that send and wait: on a GPU one launch, on a CPU repeated calls until
everything has arrived.
"""

from __future__ import annotations

import time

from torch import Tensor

from jitgen.config import Config
from jitgen.config.problem import Problem
from jitgen.errors import PeerTimeout
from jitgen.ops.dispatch import rounds
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.launch import AnyLaunch, Family, chosen
from jitgen.runtime.devices import EXCHANGE_PART, Device
from jitgen.runtime.session import Session


def launch_for(
    session: Session, device: Device, problem: Problem, config: Config | None, name: str
) -> AnyLaunch:
    """
    Return a launch of the kernel for `problem`, or of an explicit `config`. Ranks may run kernels
    with different tilings, also if these have flags.

    Raises:
        InputError: No kernel serves the argument called `name`.
        KernelMiss, CompileError: As `jitgen.grouped_gemm`.
    """
    family = Family(arch=device.arch)
    wanted = config
    neighbours: tuple[Config, ...] = ()
    if wanted is None:
        wanted, neighbours = chosen(session, problem, device.arch, name)
        family = Family(arch=device.arch, problem=problem)
    function, served = device.entry(session, wanted, neighbours)
    launch = AnyLaunch(function=function, tail=device.tail, config=served, awaited=None)
    return family.recorded(served).counted(launch, problem.m)


def exchange(
    launch: AnyLaunch,
    arguments: tuple[Tensor | int, ...],
    device: Device,
    link: Link,
    *,
    is_beside: bool = False,
) -> None:
    """
    Send to the peers of `link` and receive from them. On a GPU this is one launch, and the kernel
    waits; on a CPU this function waits. With `is_beside` it takes the SMs that products leave to
    it: see `jitgen.runtime.devices.EXCHANGE_PART`.

    Raises:
        PeerTimeout: On a CPU, a wait reached its limit, and ranks are not masked. On a GPU,
            `require_in_time` raises it.
    """
    if device.arch.is_gpu:
        tail = launch.tail
        if is_beside:
            tail = tuple(max(1, each // EXCHANGE_PART) for each in tail)
        launch.function(*arguments, *tail)
        return
    state = link.state
    if not link.can_mask:
        require_in_time(state)
    limit_s, begin, heard = int(state[rounds.LIMIT_MS]) / 1000, time.monotonic(), 0
    while True:
        launch.function(*arguments)
        missing = int(state[rounds.MISSING])
        if not missing:
            return
        if link.can_mask and heard != (heard := int(state[rounds.HEARD])):
            begin = time.monotonic()  # that rank waits in an earlier step
        if time.monotonic() - begin > limit_s:
            if link.can_mask:
                _mask(state, missing - 1)
                continue
            _note_late(state, missing)
            require_in_time(state)
        time.sleep(0)


def _mask(state: Tensor, source: int) -> None:
    """Mask a rank, as kernels on a GPU do; the next call notes it in that rank's memory."""
    state[rounds.MASKED] |= 1 << source
    state[rounds.MASKED_AT + source] = 2 * state[rounds.SENT]  # may overflow, as on a GPU


def _note_late(state: Tensor, missing: int) -> None:
    """
    Record in the state, as kernels on a GPU do, that a wait reached its limit: its step, its round
    and the rank that did not send.
    """
    number, is_of_sums = divmod(int(state[rounds.SENT]), 2)
    state[rounds.FAILED] = missing + (rounds.OF_SUMS if is_of_sums else 0)
    state[rounds.FAILED_ROUND] = number


def require_in_time(state: Tensor) -> None:
    """
    Require that no wait has reached its limit; this waits for the device.

    Raises:
        PeerTimeout: A wait has reached its limit.
    """
    late = rounds.late(state)
    if late is not None:
        rank = int(state[rounds.RANK])
        raise PeerTimeout(
            f"rank {rank} waited for rank {late.source} in {late.step} of round {late.number} for "
            f"more than {int(state[rounds.LIMIT_MS]) / 1000:g} s; results since then mean nothing: "
            "find out what happened to that rank, and connect the ranks again",
            rank=rank,
            source=late.source,
            number=late.number,
        )
