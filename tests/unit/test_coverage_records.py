# SPDX-License-Identifier: Apache-2.0
"""What a prewarm leaves in a cache, and a bundle carries: a plan, and the devices that chose."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from jitgen import plans, warm_up
from jitgen.bundle import image, layer
from jitgen.bundle.export import export
from jitgen.bundle.install import install
from jitgen.cache import Store
from jitgen.cache.folder import Damaged
from jitgen.config import Arch
from jitgen.errors import CacheError
from jitgen.plans import Plan
from jitgen.plans.prewarm import prewarm
from jitgen.runtime import coverage
from jitgen.runtime.coverage import BadCoverage, Coverage
from jitgen.settings import settings
from jitgen.targets.legality import target
from tests.cli.conftest import Jitgen, jitgen
from tests.unit.coverage_fakes import (
    GPU,
    H20,
    H100,
    H200,
    filled,
    frozen_on,
    plan,
    prewarmed,
    store,
)

__all__ = ["jitgen", "plan", "store"]

DAMAGED = (
    '{"schema": 1, "plan": "small", "problems": "", "arch": "sm_90a", "devices": [], '
    '"conditions": {}}'
)
"""Is none, until something in it is changed."""


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

    def test_kernels_and_the_processor_leave_none(self, plan: Plan, store: Store) -> None:
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
