# SPDX-License-Identifier: Apache-2.0
"""
A process that may not compile, on a device for which nothing was prewarmed: told when it begins.

It used to learn that from the call that first chose a kernel of its own, a hundred batches later.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jitgen import events, freeze, plans
from jitgen.cache import Store
from jitgen.errors import SettingError
from jitgen.plans import Plan
from jitgen.runtime import coverage, devices
from jitgen.runtime.session import Session, current
from jitgen.settings import settings
from jitgen.targets.legality import target
from tests.unit.coverage_fakes import (
    GPU,
    H20,
    H100,
    H200,
    PLAN,
    at_hand,
    device_of_this_machine,
    filled,
    frozen_on,
    plan,
    prewarmed,
    small,
    store,
)

torch = pytest.importorskip("torch")

__all__ = ["device_of_this_machine", "plan", "store"]


class TestFreeze:
    def test_of_another_device(
        self, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The warning names the device, the covered ones, and the command."""
        prewarmed(plan, store, H200, H100)
        said = frozen_on(H20, caplog)

        assert "calls on NVIDIA H20 may choose kernels that were not prewarmed" in said
        assert f"small was prewarmed for {H200}, {H100};" in said
        assert said.endswith("run: jitgen prewarm small.toml --arch sm_90a --device 'NVIDIA H20'\n")
        assert said.count("\n") == 1

    def test_of_a_device_that_is_covered(
        self, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        prewarmed(plan, store, H200)
        prewarmed(plan, store, H20)

        assert frozen_on(H20, caplog) == ""
        assert frozen_on("b200", caplog) == "", "nothing is known of its target"

    def test_without_devices_all_are_covered(
        self, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        prewarmed(plan, store)

        assert [frozen_on(each.name, caplog) for each in target(GPU).devices] == [""] * 5

    def test_where_nothing_was_prewarmed(
        self, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Kernels may have come from anywhere: nothing is known, and nothing said."""
        filled(store, plans.configs(plan, GPU))

        assert frozen_on(H20, caplog) == ""

    def test_of_several_plans(
        self, tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Each that was not for this device is named; four of them as three and one more."""
        names = ["a", "b", "c", "d"]
        of_h200 = [replace(small(tmp_path, name), name=name) for name in names]
        for each in of_h200:
            prewarmed(each, store, H200)
        prewarmed(replace(of_h200[0], name="deepseek-v3"), store, H200)
        prewarmed(of_h200[1], store, H20)
        said = frozen_on(H20, caplog)

        assert said.count("was prewarmed for") == 3
        assert "; and 1 more; run: jitgen prewarm " in said
        assert "b was prewarmed" not in said
        assert "deepseek-v3 --arch" in said or " deepseek-v3 " in said

    def test_under_other_settings(
        self, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What a problem chooses depends on them as much as on the device."""
        prewarmed(plan, store)
        said = frozen_on(H200, caplog, numerics="invariant", min_latency=True)

        assert "small was prewarmed with JITGEN_MIN_LATENCY 0, here 1, JITGEN_NUMERICS fast" in said

    def test_under_settings_that_change_nothing(
        self, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        """None that other plans alone depend on, and none that a problem has decided itself."""
        prewarmed(plan, store)
        assert frozen_on(H200, caplog, max_workspace=0, on_miss="error", jobs=3) == ""
        decided = tuple(
            replace(each, problem=replace(each.problem, numerics="fast", min_latency=False))
            for each in plan.sweeps
        )
        store.clear()
        prewarmed(replace(plan, sweeps=decided), store)

        assert frozen_on(H200, caplog, numerics="invariant", min_latency=True) == ""
        assert "JITGEN_SELECT dynamic, here passes" in frozen_on(H200, caplog, select="passes")

    def test_under_other_room_for_unpacked_weights(
        self, tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Which decides whether prepacked ones are unpacked first."""
        file = tmp_path / "prepacked.toml"
        more = 'dtype = "e4m3"\nb_dtype = "e2m1"\nscale_granularity = "mx32"\n'
        more += 'a_scale_granularity = "row"\nb_layout = "exact1"\n'
        file.write_text(PLAN + more, encoding="utf-8")
        prewarmed(plans.load(file), store)

        assert "JITGEN_MAX_WORKSPACE 2147483648, here 0" in frozen_on(H200, caplog, max_workspace=0)

    def test_of_another_release(
        self,
        plan: Plan,
        store: Store,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        prewarmed(plan, store)
        monkeypatch.setattr(coverage, "__version__", "99.0")

        assert "small was prewarmed with jitgen " in frozen_on(H200, caplog)
        later = tuple(replace(each, max_rows=600) for each in plan.sweeps)
        prewarmed(replace(plan, sweeps=later), store, H200)
        assert frozen_on(H200, caplog) == "", "and the plan may be another by then"

    def test_of_a_base(
        self, plan: Plan, tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Where an image was prewarmed, whose root is only read."""
        base = tmp_path / "image"
        with settings.scope(cache_dir=base):
            prewarmed(plan, Store.open(base), H200)

        assert frozen_on(H20, caplog) == ""
        assert f"was prewarmed for {H200}" in frozen_on(H20, caplog, base=[base])
        assert frozen_on(H200, caplog, base=[base]) == ""

    def test_an_unknown_device(self) -> None:
        with settings.scope(device="NVIDIA H3"), pytest.raises(SettingError, match="not known"):
            Session().freeze()

    def test_to_thaw_says_nothing(
        self, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        prewarmed(plan, store, H200)
        with settings.scope(device=H20):
            freeze("off")

        assert caplog.text == ""


class TestAtHand:
    """Of a GPU that is there, and not named."""

    def test_it_is_not_touched_first(
        self,
        plan: Plan,
        store: Store,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A process that has not touched its GPU may still fork: its first call tells."""
        prewarmed(plan, store, H200)
        at_hand(monkeypatch, H20)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
        for name in ("get_device_capability", "get_device_name", "is_available"):
            monkeypatch.setattr(torch.cuda, name, lambda *_: pytest.fail("it was touched"))
        session = current.get()
        session.freeze()
        assert caplog.text == ""
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        monkeypatch.setattr(session.loader, "get", lambda *_: _Served())
        gpu = devices.Cuda(arch=GPU, tail=(132,), number=0, is_alone=True)
        gpu.entry(session, plans.configs(plan, GPU)[0], ())

        assert "calls on NVIDIA H20 may choose" in caplog.text
        session.freeze("off")

    @pytest.mark.parametrize(("mode", "told"), [("error", True), ("compile", False)])
    def test_with_jitgen_on_miss(
        self,
        mode: str,
        told: bool,
        plan: Plan,
        store: Store,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """JITGEN_ON_MISS=error is the same as to freeze."""
        prewarmed(plan, store, H200)
        at_hand(monkeypatch, H20)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        session = current.get()
        monkeypatch.setattr(session.loader, "get", lambda *_: _Served())
        gpu = devices.Cuda(arch=GPU, tail=(132,), number=0, is_alone=True)
        with settings.scope(on_miss=mode):
            gpu.entry(session, plans.configs(plan, GPU)[0], ())

        assert ("calls on NVIDIA H20 may choose" in caplog.text) is told

    def test_an_unknown_one_is_as_the_first(
        self,
        plan: Plan,
        store: Store,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """An H800 asks for what an H200 does: it is covered where that is, and else named so."""
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        prewarmed(plan, store, H100)
        at_hand(monkeypatch, "NVIDIA H800")
        freeze()
        assert "calls on NVIDIA H800 (chosen for as NVIDIA H200) may choose" in caplog.text
        assert caplog.text.endswith("--device 'NVIDIA H200'\n")
        caplog.clear()
        prewarmed(plan, store, H200)
        events._warned.clear()
        at_hand(monkeypatch, "NVIDIA H800")
        freeze()

        assert caplog.text == ""
        freeze("off")

    def test_one_that_is_to_be_chosen_for_as_another(
        self,
        plan: Plan,
        store: Store,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """JITGEN_DEVICE says what calls choose; what was prewarmed for the GPU is of no use."""
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
        prewarmed(plan, store, H100)
        at_hand(monkeypatch, H100)

        assert "calls on NVIDIA H20 may choose" in frozen_on(H20, caplog)
        assert frozen_on(H100, caplog) == ""
        assert frozen_on("b200", caplog) == "", "which is of another target, and so says nothing"

    def test_where_there_is_none(
        self, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        prewarmed(plan, store, H200)
        freeze()
        freeze("off")

        assert caplog.text == ""


class _Served:
    """A kernel, as far as a launch looks at one."""

    config = None
    function = None

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]
