# SPDX-License-Identifier: Apache-2.0
"""A lock, and what differs from it: told before the first call, in one line that says the mend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.compile import toolchain
from jitgen.errors import KernelMiss, LockError, SettingError
from jitgen.plans import Plan, configs
from jitgen.plans.lock import MissingKernels, locked, plans_of, require_plans, wanted_of
from jitgen.runtime import devices
from jitgen.runtime import locked as checking
from jitgen.runtime.lock import Lock, read
from jitgen.runtime.session import Session
from jitgen.runtime.spec import key, spec_of
from jitgen.selection import device as tuning
from jitgen.selection import measurements
from jitgen.selection.choice import Chooser
from jitgen.selection.record import TuningRecord
from jitgen.settings import settings
from tests.unit.coverage_fakes import (
    GPU,
    H20,
    H100,
    H200,
    device_of_this_machine,
    filled,
    forget,
    plan,
    small,
    store,
)
from tests.unit.remote_stand import KEY, Stand, signatures_of
from tests.unit.store_fakes import fake_files

__all__ = ["device_of_this_machine", "plan", "store"]


@pytest.fixture
def lock(plan: Plan, store: Store) -> Lock:
    """The lock of a small plan for two devices."""
    filled(store, configs(plan, GPU, devices=(H200, H100)))
    return locked([plan], [GPU], store, (H200, H100))


@pytest.fixture
def file(lock: Lock, tmp_path: Path) -> Path:
    """Its file."""
    path = tmp_path / "jitgen.lock"
    path.write_bytes(lock.encode())
    return path


@contextmanager
def rank(root: Path, device: str = "", **more: Any) -> Iterator[Session]:
    """A rank of a job: a session with its own cache, on a device."""
    forget()
    with settings.scope(cache_dir=root, device=device, **more), Session() as session:
        yield session


def told(root: Path, file: Path, device: str = "", **more: Any) -> str:
    """Return why a rank does not freeze; it must not have been frozen then."""
    with rank(root, device, **more) as session:
        with pytest.raises(LockError) as raised:
            session.freeze(lock=file)
        assert not session.loader.is_frozen
    text = str(raised.value)
    assert "\n" not in text
    assert raised.value.differences
    return text


def winning(plan: Plan, store: Store, device: str) -> str:
    """Measure on `device` that another kernel than the chosen one is the fastest; its name."""
    sweep = plan.sweeps[0]
    place = next(iter(plan.problems(GPU)))
    chosen = Chooser(lambda: None).select(place, GPU, device=device)
    names = [each.config.name(GPU) for each in chosen.candidates]
    times = {name: 10.0 + number for number, name in enumerate(reversed(names))}
    found = TuningRecord(
        problem=place, winner=names[-1], times_us=times, excluded={}, date="2026-11-28"
    )
    measurements.record(store, GPU, found, device)
    assert sweep.min_rows == 1
    return names[-1]


class _Served:
    """A kernel that does nothing."""

    config: object = None

    def function(self, *_: object) -> None:
        """Run."""


class TestFile:
    def test_a_lock_is_read_as_it_was_written(self, lock: Lock, file: Path) -> None:
        assert read(file) == lock
        assert read(file).digest == lock.digest

    def test_it_holds_the_plan_and_its_kernels(self, plan: Plan, lock: Lock) -> None:
        assert plans_of(lock) == [plan]
        (wanted,) = wanted_of(lock)[GPU]
        assert set(wanted.configs) <= set(configs(plan, GPU, devices=(H200, H100)))
        assert {each.key for each in lock.targets[0].kernels} == {s.key for s in wanted.specs}

    def test_it_is_not_made_without_every_kernel(self, plan: Plan, store: Store) -> None:
        with pytest.raises(MissingKernels, match=r"jitgen prewarm /\S*small\.toml --arch sm_90a"):
            locked([plan], [GPU], store, (H200,))

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"schema": 7}, "it has the schema 7, and this jitgen reads 1"),
            ({"toolchain": 3}, "toolchain must be an object"),
            ({"more": 1}, "more is not known"),
        ],
    )
    def test_another_file_is_no_lock(self, change: dict[str, Any], reason: str, file: Path) -> None:
        file.write_text(json.dumps(json.loads(file.read_bytes()) | change), encoding="ascii")

        with pytest.raises(LockError, match=reason):
            read(file)

    def test_a_lock_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(LockError, match=r"cannot be read: No such file.*jitgen lock makes one"):
            read(tmp_path / "no.lock")

    def test_a_plan_that_was_changed_by_hand(self, file: Path) -> None:
        document = json.loads(file.read_bytes())
        document["plans"][0]["sweeps"][0]["max_rows"] = 4096
        file.write_text(json.dumps(document), encoding="ascii")

        with pytest.raises(LockError, match="does not have the digest that it states"):
            plans_of(read(file))


class TestRanks:
    def test_eight_ranks_on_two_devices_choose_as_the_lock_says(
        self, plan: Plan, lock: Lock, file: Path, store: Store
    ) -> None:
        """Each compares itself before its first call, and later calls choose just that."""
        found: dict[str, set[tuple[str, ...]]] = {H200: set(), H100: set()}
        for number in range(8):
            device = (H200, H100)[number % 2]
            with rank(store.root, device) as session:
                session.freeze(lock=file)
                chosen = [session.select(each, GPU) for each in plan.problems(GPU)]
                found[device].add(tuple(each.config.name(GPU) for each in chosen))
                with pytest.raises(KernelMiss):
                    session.get_kernel(configs(plan, "cpu")[0], "cpu")

        assert [len(each) for each in found.values()] == [1, 1]
        names = {name for each in found.values() for (*steps,) in each for name in steps}
        assert names == {each.name for each in lock.targets[0].kernels}

    def test_a_rank_with_other_measurements(
        self, plan: Plan, file: Path, store: Store, tmp_path: Path
    ) -> None:
        """Seven ranks agree, and the eighth was tuned: it alone is told, and why."""
        other = Store.open(tmp_path / "eighth")
        filled(other, configs(plan, GPU, devices=(H200, H100)))
        name = winning(plan, other, H200)
        for _ in range(7):
            with rank(store.root, H200) as session:
                session.freeze(lock=file)
        said = told(other.root, file, H200)

        assert f"on {H200} grouped_gemm " in said
        assert f"launches {name}, locked is " in said
        assert "by measurements: here are some, and the lock was made without" in said

    def test_a_rank_without_the_measurements_of_the_lock(
        self, plan: Plan, store: Store, tmp_path: Path
    ) -> None:
        winning(plan, store, H200)
        filled(store, configs(plan, GPU, Chooser(lambda: store), devices=(H200,)))
        file = tmp_path / "tuned.lock"
        file.write_bytes(locked([plan], [GPU], store, (H200,)).encode())
        with rank(store.root, H200) as session:
            session.freeze(lock=file)
        other = filled(Store.open(tmp_path / "other"), configs(plan, GPU, devices=(H200,)))

        assert "here are none" in (said := told(other.root, file, H200))
        assert "jitgen tune --export there, --import here" in said

    def test_a_rank_with_another_table(
        self, file: Path, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The tables that come with jitgen are of another release there."""
        monkeypatch.setattr(measurements, "TARGETS", tmp_path / "none")
        for cached in (measurements._shipped_devices, measurements._packed):
            cached.cache_clear()
        try:
            said = told(store.root, file, H200)
        finally:
            monkeypatch.undo()
            for cached in (measurements._shipped_devices, measurements._packed):
                cached.cache_clear()

        assert "the shipped table is another" in said

    def test_a_rank_under_other_settings(self, file: Path, store: Store) -> None:
        said = told(store.root, file, H200, select="passes")

        assert "JITGEN_SELECT dynamic locked, here passes" in said
        assert "set JITGEN_SELECT=dynamic, or lock what is here: jitgen lock small.toml" in said

    def test_a_rank_with_another_toolchain(
        self, file: Path, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every key is another then: one line says so, and not one for each kernel."""
        here = toolchain.versions()
        other = here | {"nvidia-cutlass-dsl": "4.9.0"}
        monkeypatch.setattr(toolchain, "versions", lambda: other)
        key.cache_clear()
        try:
            said = told(store.root, file, H200)
        finally:
            key.cache_clear()

        locked = here["nvidia-cutlass-dsl"]
        assert "kernels for sm_90a have other keys here" in said
        assert f"nvidia-cutlass-dsl {locked} locked, here 4.9.0" in said
        assert f"pip install 'nvidia-cutlass-dsl=={locked}'" in said
        assert " more)" not in said

    def test_a_rank_without_a_kernel(self, lock: Lock, file: Path, store: Store) -> None:
        gone = next(each for each in lock.targets[0].kernels)
        store.remove(gone.key)
        with_it = [H for H in (H200, H100) if gone.name in _of_device(lock, H)]
        said = told(store.root, file, with_it[0])

        assert f"{gone.name} of " in said
        assert f"cannot be found; run: jitgen prewarm --locked {file}" in said

    def test_a_rank_with_other_bytes(self, lock: Lock, file: Path, store: Store) -> None:
        """Another linker of the same version built it: it has the key, and not the digest."""
        kernel = lock.targets[0].kernels[0]
        entry = store.read(kernel.key)
        assert entry is not None
        store.remove(kernel.key)
        store.publish(entry.meta, {**entry.files, "kernel.so": fake_files(77)["kernel.so"]})
        with_it = [H for H in (H200, H100) if kernel.name in _of_device(lock, H)]

        assert f"{kernel.name} has another kernel.so" in told(store.root, file, with_it[0])

    def test_a_rank_on_another_device(self, file: Path, store: Store) -> None:
        assert f"it is for {H200}, {H100}, and this is {H20}" in told(store.root, file, H20)
        said = told(store.root, file, "NVIDIA B200")
        assert "it is for sm_90a, and this is NVIDIA B200, an sm_100a" in said
        assert "jitgen lock small.toml --arch sm_100a" in said

    def test_a_device_that_is_not_known_yet(self, plan: Plan, file: Path, store: Store) -> None:
        """All devices of the lock are compared then; a kernel of either is missed."""
        with rank(store.root) as session:
            session.freeze(lock=file)
            assert session.loader.is_frozen
            assert session._lock_to_check is not None
        store.clear()
        assert "cannot be found" in told(store.root, file)
        assert plan.sweeps

    @pytest.mark.parametrize(("name", "is_told"), [(H20, True), (H100, False)])
    def test_a_gpu_that_is_used_later(
        self,
        name: str,
        is_told: bool,
        plan: Plan,
        file: Path,
        store: Store,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The first call finds out which GPU it is, and raises before its launch."""
        torch = pytest.importorskip("torch")
        with rank(store.root) as session:
            session.freeze(lock=file)
            assert session._lock_to_check is not None
            monkeypatch.setattr(tuning, "gpu_at_hand", lambda _: name)
            tuning.device_name.cache_clear()
            monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
            monkeypatch.setattr(session.loader, "get", lambda *_: _Served())
            gpu = devices.Cuda(arch=GPU, tail=(132,), number=0, is_alone=True)
            config = configs(plan, GPU, devices=(H200,))[0]
            if is_told:
                with pytest.raises(LockError, match=f"and this is {name}"):
                    gpu.entry(session, config, ())
            else:
                gpu.entry(session, config, ())
                assert session._lock_to_check is None

    @pytest.mark.parametrize(
        ("models", "device"), [([H100], H100), ([H20], H20), ([H100, H200], ""), ([], "")]
    )
    def test_the_drivers_files_name_the_device(
        self,
        models: list[str],
        device: str,
        file: Path,
        store: Store,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """No GPU is taken into use for it, and only that device's choices are compared."""
        for number, model in enumerate(models):
            folder = tmp_path / "gpus" / f"0000:{number:02}:00.0"
            folder.mkdir(parents=True)
            (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 42\n")
        monkeypatch.setattr(tuning, "_GPUS", tmp_path / "gpus")
        assert tuning.gpu_of_host() == device
        asked: set[str | None] = set()
        select = Chooser.select

        def noted(chooser: Chooser, *problem: Any, **more: Any) -> Any:
            asked.add(more.get("device"))
            return select(chooser, *problem, **more)

        monkeypatch.setattr(Chooser, "select", noted)
        if device == H20:
            assert f"and this is {H20}" in told(store.root, file)
            return
        with rank(store.root) as session:
            session.freeze(lock=file)

        assert asked == ({device} if device else {H200, H100})

    def test_a_missing_kernel_is_fetched(
        self, lock: Lock, file: Path, store: Store, stand: Stand
    ) -> None:
        """With the locked bytes; it is here then, before the first call."""
        kernel = next(
            each for each in lock.targets[0].kernels if each.name in _of_device(lock, H200)
        )
        entry = store.read(kernel.key)
        assert entry is not None
        stand.push(replace(entry, signatures=signatures_of(entry.meta, KEY)))
        store.remove(kernel.key)
        with rank(store.root, H200, remote=stand.url) as session:
            session.freeze(lock=file)

        assert store.read(kernel.key) is not None

    def test_to_thaw_takes_no_lock(self, file: Path) -> None:
        with pytest.raises(SettingError, match="takes no lock"):
            Session().freeze("off", lock=file)


def _of_device(lock: Lock, device: str) -> set[str]:
    return {
        name
        for each in lock.targets[0].choices
        if each.device == device
        for step in each.steps
        for name in step.kernels
    }


class TestForeign:
    def test_of_another_plan(self, lock: Lock, tmp_path: Path, plan: Plan) -> None:
        require_plans(lock, [plan])
        with pytest.raises(LockError, match="not for the plan other: it has small"):
            require_plans(lock, [small(tmp_path, "other")])

    def test_of_a_plan_that_has_changed(self, lock: Lock, tmp_path: Path) -> None:
        (tmp_path / "new").mkdir()
        changed = small(tmp_path / "new")
        sweep = changed.sweeps[0]
        changed = replace(changed, sweeps=(replace(sweep, max_rows=9),))
        with pytest.raises(LockError, match="it has another plan of that name"):
            require_plans(lock, [changed])

    def test_with_kernels_that_this_jitgen_cannot_make(self, file: Path, store: Store) -> None:
        document = json.loads(file.read_bytes())
        document["targets"][0]["kernels"][0]["config"]["tile"]["m"] = 12345
        file.write_text(json.dumps(document), encoding="ascii")

        with rank(store.root, H200) as session, pytest.raises(LockError, match="cannot make"):
            session.freeze(lock=file)

    def test_steps_of_a_lock_are_those_of_calls(self, plan: Plan, lock: Lock) -> None:
        """Every bucket is in a step, and its kernel is the one that a call chooses."""
        sweep, device = plan.sweeps[0], H100
        (choices,) = (c for c in lock.targets[0].choices if c.device == device and c.sweep == 0)
        chooser = Chooser(lambda: None)
        for rows in range(sweep.min_rows, sweep.max_rows + 1, 7):
            chosen = chooser.select(sweep.problem.with_mean(rows), GPU, device=device)
            assert checking._at(choices.steps, rows)[0] == chosen.config.name(GPU)
            assert spec_of(chosen.config, GPU).key in {k.key for k in lock.targets[0].kernels}
