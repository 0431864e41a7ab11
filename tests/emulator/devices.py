# SPDX-License-Identifier: Apache-2.0
"""Small kernels on several devices that share windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from jitgen.emulator.devices import DeviceCall, OnDevices, emulate_devices
from jitgen.emulator.host.windows import Window
from jitgen.emulator.machine.machine import Launch
from jitgen.emulator.report import Report
from jitgen.errors import MachineFault
from tests.emulator.mutation import text_of

HEAD = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry {name}({params})
{{
{body}
ret;
}}
"""


def kernel(body: str, name: str = "kernel", params: Sequence[str] = ()) -> str:
    """Return PTX; `params` are declarations without ``.param``, such as ``.u64 inbox``."""
    return HEAD.format(name=name, body=body, params=", ".join(f".param {one}" for one in params))


@dataclass
class Host:
    """
    Devices, their windows and the calls that they make.

    Attributes:
        count: Number of devices.
        windows: Windows that all devices see, by name.
        calls: The calls, in their order.
        unknown: Names of windows whose words mean nothing at first.
    """

    count: int
    windows: dict[str, Window] = field(default_factory=dict)
    calls: list[DeviceCall] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def window(self, name: str, words: int, *, is_unknown: bool = False) -> Window:
        """Make a window of 32-bit words that are 0."""
        made = Window([torch.zeros(words, dtype=torch.int32) for _ in range(self.count)])
        self.windows[name] = made
        self.unknown += [name] if is_unknown else []
        return made

    def call(
        self,
        device: int,
        ptx: str,
        arguments: dict[str, object],
        *,
        grid: int = 1,
        block: int = 32,
        is_dependent: bool = False,
    ) -> None:
        """Let a device make a call."""
        launch = Launch(grid=(grid, 1, 1), block=(block, 1, 1), is_dependent=is_dependent)
        self.calls.append(DeviceCall(device=device, kernel=ptx, arguments=arguments, launch=launch))

    def run(self, modes: str = "quick", replays: int = 1) -> Report:
        """Run all calls."""
        return emulate_devices(
            OnDevices(calls=self.calls, windows=self.windows, replays=replays),
            modes=modes,
            unknown=self.unknown,
            time_limit_s=60,
        )

    def found(self, modes: str = "quick", replays: int = 1) -> list[str]:
        """Return what is found, the fault that ended a mode among it."""
        try:
            return [str(finding) for _, finding in self.run(modes, replays).findings]
        except MachineFault as fault:
            return [text_of(fault)]


def words(tensor: Tensor) -> list[int]:
    """Return the values of a tensor of words."""
    found: list[int] = tensor.tolist()
    return found
