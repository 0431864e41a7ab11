# SPDX-License-Identifier: Apache-2.0
"""
A process that may not compile, on a device for which nothing was prewarmed: told when it begins.

It used to learn that from the call that first chose a kernel of its own, a hundred batches later.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitgen import events, freeze, plans, warm_up
from jitgen.bundle import image, layer
from jitgen.bundle.export import export
from jitgen.bundle.install import install
from jitgen.cache import Store
from jitgen.cache.folder import Damaged
from jitgen.config import Arch
from jitgen.errors import CacheError, ConfigError
from jitgen.plans import Plan
from jitgen.runtime import coverage, devices
from jitgen.runtime.coverage import BadCoverage, Coverage
from jitgen.runtime.prewarm import prewarm
from jitgen.runtime.session import Session, current
from jitgen.settings import settings
from jitgen.targets.legality import target
from tests.cli.conftest import Jitgen, jitgen
from tests.unit.coverage_fakes import GPU, H20, H100, H200, PLAN, at_hand, filled, small

torch = pytest.importorskip("torch")

__all__ = ["jitgen"]


DAMAGED = (
    '{"schema": 1, "plan": "small", "problems": "", "arch": "sm_90a", "devices": [], '
    '"conditions": {}}'
)
"""Is none, until something in it is changed."""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return small(tmp_path)


@pytest.fixture
def store(cache_root: Path) -> Store:
    """The store of this process."""
    return Store.open(cache_root)


def prewarmed(plan: Plan, store: Store, *names: str) -> Coverage:
    """Prewarm a plan for devices, and return what the store says of it then."""
    filled(store, plans.configs(plan, GPU, devices=names))
    report = prewarm(plan, arch=GPU, store=store, devices=names)
    assert report.ok
    return next(each for each in coverage.kept(store, GPU) if each.devices == report.devices)


def frozen_on(name: str, caplog: pytest.LogCaptureFixture, **inside: Any) -> str:
    """Return what a process says that ends compiling, where kernels are chosen for `name`."""
    events._warned.clear()
    caplog.clear()
    with settings.scope(device=name, **inside), Session() as session:
        session.freeze()
    return caplog.text


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
        """Which decides whether prepared ones are unpacked first."""
        file = tmp_path / "prepared.toml"
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

    def test_a_device_that_nobody_knows(self) -> None:
        with settings.scope(device="NVIDIA H3"), pytest.raises(ConfigError, match="not known"):
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
        monkeypatch.setattr(session.registry, "get", lambda *_: _Served())
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
        monkeypatch.setattr(session.registry, "get", lambda *_: _Served())
        gpu = devices.Cuda(arch=GPU, tail=(132,), number=0, is_alone=True)
        with settings.scope(on_miss=mode):
            gpu.entry(session, plans.configs(plan, GPU)[0], ())

        assert ("calls on NVIDIA H20 may choose" in caplog.text) is told

    def test_one_that_nobody_knows_is_as_the_first(
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


class TestRecords:
    """What a prewarm leaves behind, and when."""

    def test_only_where_all_is_there(self, plan: Plan, store: Store, jitgen: Jitgen) -> None:
        """A dry run leaves nothing, and neither does a check that fails."""
        first, *others = plans.configs(plan, GPU)
        filled(store, others)
        prewarm(plan, arch=GPU, store=store, dry_run=True)
        file = Path(store.root).parent / "small.toml"
        assert jitgen(f"prewarm {file} --arch sm_90a --check").code == 3
        assert coverage.kept(store, GPU) == []
        filled(store, [first])
        prewarm(plan, arch=GPU, store=store, dry_run=True)
        assert jitgen(f"prewarm {file} --arch sm_90a --dry-run").code == 0
        assert coverage.kept(store, GPU) == []
        assert jitgen(f"prewarm {file} --arch sm_90a --check").code == 0

        (found,) = coverage.kept(store, GPU)
        assert found == Coverage.of(plan, GPU, [each.name for each in target(GPU).devices])

    def test_shards_that_share_a_root_leave_one_in_the_end(self, plan: Plan, store: Store) -> None:
        parts = [
            prewarm(plan, arch=GPU, store=store, shard=f"{index}/2", dry_run=True).rows
            for index in (0, 1)
        ]
        assert all(parts)
        filled(store, [row.config for row in parts[0]])
        prewarm(plan, arch=GPU, store=store, shard="0/2")
        assert coverage.kept(store, GPU) == []
        filled(store, [row.config for row in parts[1]])
        prewarm(plan, arch=GPU, store=store, shard="1/2")

        assert [each.plan for each in coverage.kept(store, GPU)] == ["small"]

    def test_a_warm_up_leaves_one(self, plan: Plan, store: Store) -> None:
        filled(store, plans.configs(plan, GPU, devices=[H20]))
        assert warm_up(plan, arch=GPU, devices=[H20]).ok

        assert [each.devices for each in coverage.kept(store, GPU)] == [(H20,)]

    def test_nobody_leaves_one_of_kernels_or_of_a_processor(self, plan: Plan, store: Store) -> None:
        configs = plans.configs(plan, GPU)
        filled(store, configs)
        prewarm(configs, arch=GPU, store=store)
        filled(store, plans.configs(plan, Arch.CPU), Arch.CPU)
        prewarm(plan, arch=Arch.CPU, store=store)

        assert coverage.kept(store, GPU) == coverage.kept(store, Arch.CPU) == []

    def test_a_store_that_is_only_read_gets_none(self, plan: Plan, store: Store) -> None:
        filled(store, plans.configs(plan, GPU))
        reader = Store(store.root, "ro")
        assert prewarm(plan, arch=GPU, store=reader).ok

        assert coverage.kept(reader, GPU) == []

    def test_one_that_cannot_be_written_is_a_warning(
        self,
        plan: Plan,
        store: Store,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def write(*_: object) -> None:
            raise CacheError("the disk is full")

        monkeypatch.setattr("jitgen.cache.tuned.Prewarmed.write", write)
        filled(store, plans.configs(plan, GPU))

        assert prewarm(plan, arch=GPU, store=store).ok
        assert "what was prewarmed is not noted: the disk is full" in caplog.text

    def test_equal_ones_are_one_and_a_cleared_cache_has_none(
        self, plan: Plan, store: Store
    ) -> None:
        prewarmed(plan, store, H200)
        prewarmed(plan, store, H200)
        assert len(coverage.kept(store, GPU)) == 1
        store.clear()

        assert coverage.kept(store, GPU) == []

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            "[" * 10**5,
            '{"schema": 1}',
            '{"schema": 2, "plan": "x"}',
            DAMAGED.replace('"small"', "3"),
            DAMAGED.replace("sm_90a", "sm_9"),
            DAMAGED.replace("[]", "[1]"),
            DAMAGED.replace("[]", "{}"),
            DAMAGED.replace("{}", '{"a": null}'),
            DAMAGED.replace("{}", "[]"),
        ],
    )
    def test_damaged_ones_count_for_nothing(
        self, text: str, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        prewarmed(plan, store, H200)
        (file,) = (Path(store.root) / "v1" / "prewarmed").rglob("*.json")
        file.write_text(text, encoding="utf-8")

        assert coverage.kept(store, GPU) == []
        assert "may choose" not in frozen_on(H20, caplog)
        file.write_text(DAMAGED, encoding="utf-8")
        assert len(coverage.kept(store, GPU)) == 1, "which is none that was changed"

    def test_names_of_any_kind_are_printed_safely(
        self, plan: Plan, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        evil = replace(plan, name="x'; rm -rf \x1b[31m\x00/../deepseek-v3")
        prewarmed(evil, store, H200)
        said = frozen_on(H20, caplog)

        assert "\x1b" not in said
        assert "\x00" not in said
        assert """prewarm 'x'"'"'; rm""" in said


class TestBundles:
    """A bundle carries what its kernels were chosen for."""

    @pytest.fixture
    def made(self, plan: Plan, store: Store, tmp_path: Path) -> image.Bundle:
        filled(store, plans.configs(plan, GPU, devices=[H200, H100]))
        path = tmp_path / "small.tar"
        return export([plan], [GPU], path, store, devices=[H200, "h100 80gb"])

    def test_the_manifest_names_them(self, made: image.Bundle, plan: Plan) -> None:
        assert made.annotations[image.DEVICES] == f"{H200},{H100}"
        assert made.notes == (Coverage.of(plan, GPU, [H200, H100]),)

    def test_all_where_none_was_named(self, plan: Plan, store: Store, tmp_path: Path) -> None:
        """It used to be empty, which stood for the first one."""
        filled(store, plans.configs(plan, GPU))
        made = export([plan], [GPU], tmp_path / "x.tar", store)
        names = [each.name for each in target(GPU).devices]

        assert made.annotations[image.DEVICES] == ",".join(names)

    def test_an_import_knows(
        self, made: image.Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        there = Store(tmp_path / "there", "rw")
        with settings.scope(verify="off"):
            install(made, there)

        assert coverage.kept(there, GPU) == list(made.notes)
        with settings.scope(cache_dir=there.root):
            assert f"was prewarmed for {H200}, {H100};" in frozen_on(H20, caplog)
            assert frozen_on(H100, caplog) == ""

    def test_a_mounted_layer_knows(
        self, made: image.Bundle, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        entries = [e for p in made.entries if (e := store.read(p.meta.key)) is not None]
        tar = tmp_path / "layer.tar"
        tar.write_bytes(layer.write(entries, made.notes))
        with tarfile.open(tar) as opened:
            opened.extraction_filter = lambda member, _: member
            opened.extractall(tmp_path / "mounted")  # noqa: S202
        root = tmp_path / "own"
        with settings.scope(cache_dir=root, base=[tmp_path / "mounted"]):
            assert "was prewarmed for" in frozen_on(H20, caplog)
            assert frozen_on(H200, caplog) == ""

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            ('"plan":"small"', '"plan":["small"]', "something else than text"),
            ('"schema":1', '"schema":7', "no record of schema 1"),
            ('"plan":"small"', '"plan":"other"', "the name of something else"),
            ('"arch":"sm_90a"', '"arch":"sm_100a"', "the name of something else"),
            ("{", "[", "is no JSON"),
        ],
    )
    def test_what_a_layer_says_is_checked(
        self, old: str, new: str, reason: str, made: image.Bundle
    ) -> None:
        tar = layer.write([], made.notes)
        text = json.dumps(made.notes[0].to_json(), sort_keys=True, separators=(",", ":"))
        assert text.encode() in tar
        assert layer.read(tar) == ((), made.notes)
        (name,) = [
            each.split(b"\0")[0].decode()
            for each in (tar[at : at + 100] for at in range(0, len(tar), 512))
            if b".json" in each
        ]
        from jitgen.bundle import archive

        bad = archive.write([(name, text.replace(old, new, 1).encode())])
        with pytest.raises(Damaged, match=reason):
            layer.read(bad)


def test_a_record_comes_back_as_it_was(plan: Plan) -> None:
    made = Coverage.of(plan, GPU, [H200])

    assert Coverage.from_json(json.loads(json.dumps(made.to_json()))) == made
    with pytest.raises(BadCoverage):
        Coverage.from_json(None)


def test_a_plan_is_told_by_what_it_asks_for(plan: Plan, tmp_path: Path) -> None:
    """Neither by its name nor by how often it was called."""
    sweeps = tuple(replace(each, calls=7) for each in plan.sweeps)

    assert replace(plan, name="x", description="y", sweeps=sweeps).digest == plan.digest
    other = tuple(replace(each, max_rows=7) for each in plan.sweeps)
    assert replace(plan, sweeps=other).digest != plan.digest
