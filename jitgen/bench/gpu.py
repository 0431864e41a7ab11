# SPDX-License-Identifier: Apache-2.0
"""State of a GPU: clocks, power, temperature."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import fields

from jitgen.selection.device import driver_version
from jitgen.support.frozen import frozen

_FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")


@frozen
class GpuState:
    """
    The state of a GPU at one moment.

    Attributes:
        sm_mhz: Clock of the SMs.
        memory_mhz: Clock of the memory.
        watts: Power, averaged over about a second.
        celsius: Temperature in degrees Celsius.
    """

    sm_mhz: float
    memory_mhz: float
    watts: float
    celsius: float

    @classmethod
    def parse(cls, line: str) -> GpuState | None:
        """
        Return the state in a line of numbers with commas; None if one of the numbers is not known.
        """
        try:
            sm_mhz, memory_mhz, watts, celsius = map(float, line.split(","))
        except ValueError:
            return None
        return cls(sm_mhz=sm_mhz, memory_mhz=memory_mhz, watts=watts, celsius=celsius)

    def __str__(self) -> str:
        """Return the state as text, with units."""
        return (
            f"SM {self.sm_mhz:.0f} MHz, memory {self.memory_mhz:.0f} MHz, {self.watts:.0f} W, "
            f"{self.celsius:.0f} C"
        )


def look() -> GpuState | None:
    """
    Return the state of torch's current GPU by nvidia-smi; None if that is not available.

    Costs some 50 ms on the host and nothing on the device.
    """
    text = _ask(",".join(_FIELDS))
    return None if text is None else GpuState.parse(text)


def words(states: Sequence[GpuState]) -> str:
    """Return the medians of several states in words; empty for none."""
    if not states:
        return ""
    middle = {
        spec.name: statistics.median(getattr(state, spec.name) for state in states)
        for spec in fields(GpuState)
    }
    return str(GpuState(**middle))


def _ask(fields: str) -> str | None:
    import torch

    program = shutil.which("nvidia-smi")
    if program is None or not torch.cuda.is_available():
        return None
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    try:
        done = subprocess.run(
            [program, f"--id=GPU-{uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def conditions() -> dict[str, str]:
    """Return the conditions of figures on torch's current GPU: driver, CUDA, SMs, its state."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "driver": driver_version(),
        "cuda": str(torch.version.cuda),
        "sms": str(properties.multi_processor_count),
        "idle": words([state for state in (look(),) if state]),
    }
