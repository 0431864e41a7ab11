# SPDX-License-Identifier: Apache-2.0
"""Measurements hold for one device and one compiler, and calls choose for the device at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitgen.autotune import import_table
from jitgen.cache import Store
from jitgen.compile import toolchain
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.errors import ConfigError, ToolchainError
from jitgen.runtime.session import select
from jitgen.selection import device
from jitgen.selection import measurements as tuned
from jitgen.selection.choice import bucket
from jitgen.selection.record import Table
from jitgen.settings import settings
from tests.unit.tuned_fakes import (
    BY_MODEL,
    GPU,
    NAMES,
    PROBLEM,
    forget,
    record,
    ship,
)

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"

pytestmark = pytest.mark.usefixtures("tables")


class TestDevices:
    """Measurements hold for one device and one compiler."""

    def test_of_another_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tuned.record(Store.open(), GPU, record(2))
        monkeypatch.setattr(toolchain, "versions", lambda: {"nvidia-cutlass-dsl": "9"})
        forget()

        assert select(PROBLEM, GPU).source == "model"

    def test_without_a_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def versions() -> None:
            raise ToolchainError("nothing is installed")

        tuned.record(Store.open(), GPU, record(2))
        monkeypatch.setattr(toolchain, "versions", versions)
        forget()

        assert select(PROBLEM, GPU).source == "model"

    @pytest.mark.parametrize("name", [H200, H100, "NVIDIA H20"])
    def test_a_table_of_any_device_is_taken_over_without_a_gpu(self, name: str) -> None:
        """
        Where an image is built; only those of the target's first device could be, so that what an
        H100 had measured could not be prewarmed for it.
        """
        table = Table(device=name, arch=GPU, conditions={}, records=(record(2),))
        found = import_table(Store.open(), table.to_json())

        assert found.taken == (PROBLEM,)
        for other in (H200, H100, "NVIDIA H20"):
            source = select(PROBLEM, GPU, device=other).source
            assert source == ("tuned" if other == name else "model")

    @pytest.mark.parametrize(
        ("at_hand", "name", "said"),
        [
            ("", "NVIDIA H800", "can be chosen here for NVIDIA H200, NVIDIA H100 80GB HBM3, "),
            (H200, H100, "are chosen for NVIDIA H200 here; export one on such a device"),
            ("NVIDIA H800", H200, "are chosen for NVIDIA H800 here"),
        ],
    )
    def test_a_table_that_would_decide_nothing_here(
        self, at_hand: str, name: str, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(device, "gpu_at_hand", lambda _: at_hand)
        forget()
        table = Table(device=name, arch=GPU, conditions={}, records=(record(2),))

        with pytest.raises(ConfigError, match=said):
            import_table(Store.open(), table.to_json())

    def test_a_table_of_an_unknown_gpu_at_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device, "gpu_at_hand", lambda _: "NVIDIA H800")
        forget()
        table = Table(device="NVIDIA H800", arch=GPU, conditions={}, records=(record(2),))
        import_table(Store.open(), table.to_json())

        assert select(PROBLEM, GPU).source == "tuned"

    def test_a_gpu_at_hand_has_its_own_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        Calls used to be chosen for as if the target's first device were at hand, by its model and
        the other's table; who prewarmed for the device that there is missed kernels.
        """
        monkeypatch.setattr(device, "gpu_at_hand", lambda _: H100)
        forget()

        assert select(PROBLEM, GPU).candidates == select(PROBLEM, GPU, device=H100).candidates
        assert select(PROBLEM, GPU).candidates != BY_MODEL.candidates

    def test_an_unknown_gpu_is_chosen_for_as_the_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(device, "gpu_at_hand", lambda _: "NVIDIA H800")
        forget()

        assert select(PROBLEM, GPU) == BY_MODEL
        assert select(PROBLEM, GPU, device="") == BY_MODEL, "whatever JITGEN_DEVICE says"
        assert device.covered(GPU)[-1] == "NVIDIA H800"
        with pytest.raises(ConfigError, match="'NVIDIA H900' of sm_90a is not known"):
            select(PROBLEM, GPU, device="NVIDIA H900")

    def test_a_device_of_another_target_changes_nothing(self) -> None:
        """JITGEN_DEVICE for the GPU used to have what was measured on the CPU ignored."""
        problem = bucket(
            GroupedGemmProblem(layout=Layout.RAGGED, groups=2, m=16, n=64, k=64), Arch.CPU
        )
        last = select(problem, Arch.CPU, use_measured=False).candidates[-1].config.name("cpu")
        tuned.record(
            Store.open(), Arch.CPU, record(problem=problem, winner=last, times_us={last: 1.0})
        )
        with settings.scope(device=H100):
            assert select(problem, "cpu").config.name("cpu") == last

    def test_of_another_gpu(self, monkeypatch: pytest.MonkeyPatch, tables: Path) -> None:
        """It has no table of its own, so the reference GPU's serves it."""
        tuned.record(Store.open(), GPU, record(2))
        ship(tables, record(1, apart=10.0))
        monkeypatch.setattr(device, "gpu_at_hand", lambda _: "NVIDIA H100 PCIe")
        forget()
        choice = select(PROBLEM, GPU)

        assert (choice.source, choice.config.name(GPU)) == ("shipped", NAMES[1])
        assert "on NVIDIA H200 on" in choice.why

    def test_with_a_table_of_its_own(self, monkeypatch: pytest.MonkeyPatch, tables: Path) -> None:
        ship(tables, record(1, apart=10.0))
        ship(tables, record(2, apart=10.0), name="NVIDIA H100 PCIe")
        assert select(PROBLEM, GPU).config.name(GPU) == NAMES[1]
        monkeypatch.setattr(device, "gpu_at_hand", lambda _: "NVIDIA H100 PCIe")
        forget()

        assert select(PROBLEM, GPU).config.name(GPU) == NAMES[2]
        assert "on NVIDIA H100 PCIe on" in select(PROBLEM, GPU).why

    def test_the_gpu_is_only_asked_where_that_matters(
        self, monkeypatch: pytest.MonkeyPatch, tables: Path
    ) -> None:
        """Its name costs importing torch: not where one is named, nor where there is but one."""
        monkeypatch.setattr(device, "gpu_at_hand", lambda _: pytest.fail("it was asked"))
        ship(tables, record(1))

        assert select(PROBLEM, GPU, device=H200).source == "shipped"
        assert select(PROBLEM, "sm_121a").source == "model"
        with settings.scope(device=H200):
            assert select(PROBLEM, GPU).source == "shipped"

    def test_a_cpu_is_a_device_too(self) -> None:
        problem = bucket(
            GroupedGemmProblem(layout=Layout.RAGGED, groups=2, m=16, n=64, k=64), Arch.CPU
        )
        last = select(problem, Arch.CPU, use_measured=False).candidates[-1].config.name("cpu")
        found = record(problem=problem, winner=last, times_us={last: 1.0})
        tuned.record(Store.open(), Arch.CPU, found)

        assert select(problem, "cpu").config.name("cpu") == last
        assert device.cpu_name() in select(problem, "cpu").why
