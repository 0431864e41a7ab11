# SPDX-License-Identifier: Apache-2.0
"""Artifacts on several devices: their host parts are run with the addresses of each device."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from jitgen.emulator.artifact import Artifact
from jitgen.emulator.devices import DeviceCall, OnDevices, emulate_devices
from jitgen.emulator.host.windows import Window
from jitgen.errors import InputError
from tests.emulator.host import KERNEL, build
from tests.emulator.test_api import DOUBLE, PTX

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


def work(folder: Path, body: str = DOUBLE) -> tuple[OnDevices, Window]:
    """Let each of two devices write to the window of the other."""
    artifact = Artifact(
        library=build(folder), symbol="double", ptx=PTX.format(kernel=KERNEL, body=body)
    )
    out = Window([torch.full((100,), -1, dtype=torch.int32) for _ in range(2)])
    calls = [
        DeviceCall(
            device=device,
            kernel=artifact,
            arguments={
                "out": out.seen(of=1 - device, on=device),
                "address": out.address(of=1 - device, on=device),
                "number": 100,
            },
        )
        for device in range(2)
    ]
    return OnDevices(calls=calls, windows={"out": out}), out


def test_each_device_writes_to_the_other(tmp_path: Path) -> None:
    given, out = work(tmp_path)
    report = emulate_devices(given, modes="quick", num_sms=4)
    assert report.is_clean, report
    assert report.name == KERNEL
    for tensor in out.tensors:
        assert tensor.tolist() == list(range(0, 200, 2))


def test_ordinary_stores_race_with_those_of_the_peer(tmp_path: Path) -> None:
    given, _ = work(tmp_path, DOUBLE.replace("relaxed.gpu.", ""))
    report = emulate_devices(given, modes="eager", num_sms=4)
    assert "race: write of global memory" in str(report)
    assert "out of device 1 by device 0 launch 0" in str(report)


def test_what_is_no_kernel() -> None:
    call = DeviceCall(device=0, kernel=7, arguments={})
    with pytest.raises(InputError, match=r"kernel: must be an Artifact or PTX \(got int\)"):
        emulate_devices(OnDevices(calls=[call]))
