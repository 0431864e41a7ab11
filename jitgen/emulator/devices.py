# SPDX-License-Identifier: Apache-2.0
"""
Calls of compiled kernels on several devices at once, on the CPU, in several modes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from jitgen.emulator.api import TIME_LIMIT_S
from jitgen.emulator.artifact import Artifact
from jitgen.emulator.call import Call
from jitgen.emulator.host.native import STANDALONE, Host
from jitgen.emulator.host.tensors import Tensor, span
from jitgen.emulator.host.windows import Window
from jitgen.emulator.machine.devices import MOST_DEVICES, Devices
from jitgen.emulator.machine.global_memory import GlobalMemory
from jitgen.emulator.machine.machine import NUM_SMS, Launch, Machine
from jitgen.emulator.machine.streams import Queue, Step
from jitgen.emulator.modes import Mode, modes_of_devices
from jitgen.emulator.prepared import Prepared, of_artifact, of_program
from jitgen.emulator.program.translate import Program, translate
from jitgen.emulator.report import Report
from jitgen.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCall:
    """
    One call of a kernel on one of several devices.

    Attributes:
        device: Its number, from 0.
        kernel: An artifact, or PTX of any compiler; for `jitgen.emulate` also a kernel of jitgen.
        arguments: The arguments in order, by their names in messages: torch tensors in host memory,
            which are the device's own, what `Window.seen` returns, and numbers; for PTX also bytes,
            for parameters that are structures.
        launch: For PTX: grid, block, cluster and shared memory. For an artifact the host part gives
            them.
        entry: For PTX: the name of the kernel; empty if there is only one.
        stream: Its stream on the device, from 0, in which it follows the call before.
        after: Numbers, in `OnDevices.calls`, of calls of other streams of the device that are over
            before it starts.
    """

    device: int
    kernel: object = field(repr=False)
    arguments: Mapping[str, object]
    launch: Launch | None = None
    entry: str = ""
    stream: int = 0
    after: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevices:
    """
    The calls of several devices.

    Attributes:
        calls: Calls of 1 to `MOST_DEVICES` devices. Those of a stream follow each other in their
            order.
        windows: Memory that all devices see, by the name that messages call it. A tensor that is in
            none is seen by one device alone.
        replays: How often each device runs its calls, as in replays of a graph: with the same
            arguments, on the memory that the previous replay left, and after the end of that
            replay.
    """

    calls: Sequence[DeviceCall]
    windows: Mapping[str, Window] = field(default_factory=dict)
    replays: int = 1

    @property
    def number(self) -> int:
        """
        The number of devices.

        Raises:
            InputError: There are no calls or no replays, the windows have different numbers of
                devices, the number is not allowed, or a call has a `device` or an `after` that is
                not allowed.
        """
        if not self.calls or self.replays < 1:
            raise InputError("calls", "must be one at least, and replayed once at least")
        counts = {len(window.tensors) for window in self.windows.values()}
        found = max(counts, default=1 + max(call.device for call in self.calls))
        if len(counts) > 1 or not 1 <= found <= MOST_DEVICES:
            allowed = f"for 1 to {MOST_DEVICES} devices, all alike"
            raise InputError("windows", f"must have tensors {allowed}")
        for call in self.calls:
            if not 0 <= call.device < found:
                raise InputError("device", f"must be 0 to {found - 1} (got {call.device})")
        for number, call in enumerate(self.calls):
            for other in call.after:
                if not 0 <= other < number or self.calls[other].device != call.device:
                    allowed = "earlier calls of its device"
                    raise InputError("after", f"call {number} may follow {allowed} (got {other})")
        return found


def emulate_devices(
    work: OnDevices,
    *,
    modes: str | Mode | Sequence[str | Mode] = "quick",
    num_sms: int = NUM_SMS,
    time_limit_s: float = TIME_LIMIT_S,
    host: Host = STANDALONE,
    unknown: Collection[str] = (),
) -> Report:
    """
    Run calls on several devices on the CPU, once in each mode, and return what was found.

    The calls of different devices run at the same time, and nothing but what the kernels do orders
    them. Otherwise they run as in `emulate`.

    Args:
        work: The calls of the devices.
        modes: See `emulate`; ``quick`` and ``all`` have modes for several devices as well.
        num_sms: SMs of each device.
        time_limit_s: Seconds that one mode may take.
        host: The functions that compile, cache and load native code on this machine.
        unknown: Names of arguments or windows whose contents mean nothing until a kernel has
            written them, on every device.

    Raises:
        MachineFault: A kernel did what hardware would not survive; Deadlock if all wait for ever.
        UnsupportedPtx: The PTX of a call has something that the emulator does not support.
        EmulationError: A call cannot be run for another reason.
        InputError: The calls and windows do not fit each other, `modes` is wrong, or a name in
            `unknown`.
    """
    count, windows = work.number, work.windows
    chosen = modes_of_devices(modes, count)
    programs: dict[tuple[str, str], Program] = {}
    queues = [_Queue() for _ in range(count)]
    for number, call in enumerate(work.calls):
        queues[call.device].add(number, call, _prepared(call, programs, num_sms, host))
    for mode in chosen:
        _require_lost(mode, queues, work.replays)
    groups: dict[str, list[str]] = {name: [] for name in windows}
    tensors: dict[str, Tensor] = {}
    for name, window in windows.items():
        for device, tensor in enumerate(window.tensors):
            queues[device].declare(name, tensor, device, tensors, groups)
    for device, queue in enumerate(queues):
        for name, tensor in queue.given:
            queue.declare(name, tensor, device, tensors, groups)
    _check_owners(queues, tensors)
    if strangers := sorted(set(unknown) - groups.keys()):
        raise InputError("unknown", f"{strangers[0]!r} is no tensor; allowed: {', '.join(groups)}")
    run = _Devices(
        programs=list(dict.fromkeys(program for queue in queues for program in queue.programs)),
        tensors=tensors,
        unknown=frozenset(name for group in unknown for name in groups[group]),
        queues=queues,
        windows=windows,
        replays=work.replays,
        num_sms=num_sms,
    )
    runs, _ = run.run_all(chosen, time_limit_s, explores=False)
    names = dict.fromkeys(program.module.entry for program in run.programs)
    archs = dict.fromkeys(program.module.target for program in run.programs)
    return Report(name=", ".join(names), arch=", ".join(archs), runs=runs)


@dataclass(slots=True)
class _Queue:
    """
    The calls of one device.

    Attributes:
        programs: Kernels of the calls, launched or not.
        steps: Launches of the calls, in order.
        last: By the number of each call, its last step, or if it has none the last steps of the
            calls that it follows.
        given: Tensors among the arguments, with the names that calls have for them.
        own: Names of the device's tensors, those of windows included.
    """

    programs: list[Program] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    last: dict[int, tuple[int, ...]] = field(default_factory=dict)
    given: list[tuple[str, Tensor]] = field(default_factory=list)
    own: list[str] = field(default_factory=list)

    def add(self, number: int, call: DeviceCall, prepared: Prepared) -> None:
        """Add a call, with its number, after the others."""
        self.programs += prepared.programs
        after = tuple(step for other in call.after for step in self.last[other])
        self.last[number] = after
        for program, launch in prepared.launches:
            self.steps.append(Step(program, launch, call.stream, after))
            self.last[number] = (len(self.steps) - 1,)
            after = ()
        self.given += prepared.tensors.items()

    def declare(
        self,
        name: str,
        tensor: Tensor,
        device: int,
        tensors: dict[str, Tensor],
        groups: dict[str, list[str]],
    ) -> None:
        """Declare a tensor to the device, unless it is inside a declared one."""
        group = groups.setdefault(name, [])
        if not span(tensor) or any(_holds(tensors[other], tensor) for other in self.own):
            return
        full = f"{name} of device {device}"
        while full in tensors:
            full += "'"
        tensors[full] = tensor
        group.append(full)
        self.own.append(full)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Devices(Call):
    """
    The calls of all devices.

    Attributes:
        queues: The queue of each device.
        windows: Memory that all devices can access.
        replays: How often each device runs its calls.
        num_sms: Number of SMs of each device.
    """

    queues: list[_Queue]
    windows: Mapping[str, Window]
    replays: int
    num_sms: int

    def launch(self, mode: Mode, time_limit_s: float, machines: list[Machine]) -> None:
        memories = [GlobalMemory() for _ in self.queues]
        for memory, queue in zip(memories, self.queues, strict=True):
            memory.join(memories[0])
            for name in queue.own:
                self.declare(memory, name)
        for window in self.windows.values():
            for on, memory in enumerate(memories):
                for of, owner in enumerate(memories):
                    if of != on:
                        home = window.tensors[of].data_ptr()
                        memory.add_peer(window.address(of=of, on=on), owner, home)
        queues = [
            Queue(memory, queue.steps, self.num_sms, self.replays)
            for memory, queue in zip(memories, self.queues, strict=True)
        ]
        Devices(queues, mode, machines, time_limit_s=time_limit_s).run()


def _prepared(
    call: DeviceCall, programs: dict[tuple[str, str], Program], num_sms: int, host: Host
) -> Prepared:
    """Return the launches of a call; `programs` keeps what was translated of PTX."""
    values = list(call.arguments.values())
    if isinstance(call.kernel, Artifact):
        return of_artifact(call.kernel, values, tuple(call.arguments), num_sms, host)
    if not isinstance(call.kernel, str):
        raise InputError("kernel", f"must be an Artifact or PTX (got {type(call.kernel).__name__})")
    if call.launch is None:
        raise InputError("launch", "is needed where the kernel is PTX")
    key = call.kernel, call.entry
    if key not in programs:
        programs[key] = translate(call.kernel, "", call.entry)
    return of_program(programs[key], call.launch, tuple(call.arguments), values)


def _require_lost(mode: Mode, queues: Sequence[_Queue], replays: int) -> None:
    """
    Check that the device that `mode` loses has a launch with the number `lost_from`; raises
    InputError.
    """
    if not mode.is_lost:
        return
    launches = len(queues[mode.late_device].steps) * replays
    if mode.lost_from >= launches:
        raise InputError(
            "modes",
            f"{mode.name!r} is about launch {mode.lost_from} of a device that has {launches}, "
            "counted from 0, replays included",
        )


def _holds(outer: Tensor, inner: Tensor) -> bool:
    """Return whether a tensor is inside another one."""
    start, first = inner.data_ptr(), outer.data_ptr()
    return first <= start and start + span(inner) <= first + span(outer)


def _check_owners(queues: list[_Queue], tensors: dict[str, Tensor]) -> None:
    """
    Check that no two devices have tensors of their own that share memory.

    Raises:
        InputError: Two tensors do.
    """
    found = [
        (tensors[name].data_ptr(), span(tensors[name]), name, device)
        for device, queue in enumerate(queues)
        for name in queue.own
    ]
    for (start, size, name, device), (behind, _, other, owner) in pairwise(sorted(found)):
        if device != owner and behind < start + size:
            raise InputError(
                "arguments", f"{name} and {other} share memory; what devices share is a Window"
            )
