# SPDX-License-Identifier: Apache-2.0
"""Invariant numerics: which kernels they leave, who asks for them, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import jitgen
from jitgen import plans, quantize, select
from jitgen.autotune.tuner import buckets_of
from jitgen.config import Arch, Config, Layout, Numerics
from jitgen.config.config import Part
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Schedule, Tile
from jitgen.config.operation import operation
from jitgen.errors import InputError, SettingError
from jitgen.layer.config import MoEConfig
from jitgen.ops.grouped_gemm.prepacked_algorithms import algorithms
from jitgen.runtime.devices import Emulated
from jitgen.runtime.session import current
from jitgen.selection.choice import without_hints
from jitgen.selection.numerics import keeping, regardless, require_order
from jitgen.settings import settings
from jitgen.targets.gemm import operands_of
from jitgen.targets.legality import check, rules, target
from jitgen.targets.sums import SumOrder
from tests.candidates import candidates

PRODUCTS = [(arch, op) for arch in Arch for op in target(arch).operations]
SPLIT = Schedule(raster=1, stream_b=True, split_k=2)


def problem(**changes: Any) -> GroupedGemmProblem:
    """Return a problem of one row, for which Hopper has a kernel with an order of its own."""
    given: dict[str, Any] = {"layout": "ragged", "groups": 1, "m": 1, "n": 4096, "k": 7168}
    return GroupedGemmProblem(**given | changes)


def of_paths(kind: type[Part], prefix: str = "") -> Iterator[str]:
    """Yield the paths of a config's fields, and of the parts that have some."""
    for spec in fields(kind):  # type: ignore[arg-type]
        yield f"{prefix}{spec.name}"
        of = spec.metadata["type"]
        if isinstance(of, type) and issubclass(of, Part):
            yield from of_paths(of, f"{prefix}{spec.name}.")


class TestTheOrderOfATarget:
    @pytest.mark.parametrize(("arch", "op"), PRODUCTS)
    def test_names_fields_that_there_are(self, arch: Arch, op: str) -> None:
        """A field that was renamed would be held to its default, and leave every kernel out."""
        order = rules(arch, op).sums

        assert set(order.free) <= set(of_paths(operation(op).config_type))
        assert order.words

    @pytest.mark.parametrize("arch", Arch)
    @pytest.mark.parametrize("layout", Layout)
    def test_leaves_something_for_all_operands(self, arch: Arch, layout: Layout) -> None:
        """Beside split K, nothing is left out of what the selectors choose among."""
        said: Any = rules(arch, "grouped_gemm")
        spaces = getattr(said, "spaces", (said.space,))
        every = {types for space in spaces for types in operands_of(space)}
        for types in every:
            found = candidates(arch, layout, types)
            kept = keeping(found, said.sums)

            assert bool(kept.configs) == bool(found), types
            assert set(kept.left_out) == {each for each in found if each.schedule.split_k > 1}

    def test_a_field_that_no_rule_names_is_not_harmless(self) -> None:
        """So a schedule that comes later is left out until its target vouches for it."""
        order = SumOrder(words="from the first on", free=("layout", "tile", "schedule.raster"))
        config = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=64, n=64, k=128))
        changed = replace(config, schedule=Schedule(raster=1, stream_b=True))

        assert not order.departure(config)
        assert not order.departure(replace(config, tile=Tile(m=8, n=8, k=8)))
        assert order.departure(changed) == "schedule.stream_b=True where False keeps the order"
        assert SumOrder(words="", free=()).departure(config).startswith("layout=ragged")


class TestTheChoice:
    def test_is_among_the_others(self) -> None:
        fast = select(problem(), "sm_90a")
        found = select(problem(numerics="invariant"), "sm_90a")

        assert fast.config.schedule.one_group
        assert not found.config.schedule.one_group
        assert {x.config for x in found.candidates} < {x.config for x in fast.candidates}
        assert sorted(found.excluded.values()) == [
            "numerics=invariant: schedule.one_group=True where False keeps the order",
            "numerics=invariant: schedule.split_k=2 where 1 keeps the order",
        ]
        for config in found.excluded:
            assert config.schedule.split_k == 2 or config.schedule.one_group

    def test_goes_by_the_same_measurements(self) -> None:
        """Times are stored by problem, for every caller; so are failures."""
        found = select(problem(numerics="invariant"), "sm_90a", device="NVIDIA H200")

        assert found.source == "shipped"
        assert found.config in found.times_us

    @pytest.mark.parametrize("op", ["moe_fc2_dense"])
    def test_of_other_operations_follows_the_setting(self, op: str) -> None:
        one = operation(op).problem_type(groups=8, m=8, n=1024, k=512)
        every = select(one, "sm_90a").candidates
        with settings.scope(numerics="invariant"):
            found = select(one, "sm_90a")

        assert {x.config.schedule.split_k for x in every} == {1, 2}
        assert {x.config.schedule.split_k for x in found.candidates} == {1}

    def test_a_process_may_ask_and_a_problem_may_decline(self) -> None:
        asked, plain = select(problem(numerics="invariant"), "sm_90a"), select(problem(), "sm_90a")
        with settings.scope(numerics="invariant"):
            assert select(problem(), "sm_90a") is asked
            assert select(problem(numerics="fast"), "sm_90a") is plain
        with pytest.raises(SettingError, match="fast or invariant"):
            settings.numerics = "slow"

    def test_problems_read_as_they_were_written(self) -> None:
        """Those that do not ask are spelled as ever: measurements of them hold."""
        asked = problem(numerics="invariant")

        assert GroupedGemmProblem.from_json(asked.to_json()) == asked
        assert asked.slug == f"{problem().slug}_invariant"
        assert "numerics" not in problem().to_json()
        assert without_hints(asked) == problem() == without_hints(regardless(problem()))

    def test_prepacked_weights_are_never_unpacked(self) -> None:
        """Whether they are hangs on the rows of a call."""
        many = problem(
            groups=8,
            m=8 * 4096,
            b_dtype="e2m1",
            scale_granularity="mx32",
            a_scale_granularity="row",
            b_layout="exact1",
        )
        plain = algorithms(many, "sm_90a")

        assert plain is not None
        assert plain.is_unpacked
        assert algorithms(replace(many, numerics=Numerics.INVARIANT), "sm_90a") is None

    def test_all_kernels_are_measured_for_every_caller(self) -> None:
        """Else a record would hold for those that an invariant problem leaves."""
        asked = problem(numerics="invariant")
        (place,) = buckets_of([asked, problem()], Arch.SM_90A)
        every = select(regardless(place), "sm_90a", use_measured=False).candidates

        assert place.numerics is None
        with settings.scope(numerics="invariant"):
            assert select(regardless(place), "sm_90a", use_measured=False).candidates == every

    def test_a_plan_may_ask(self, tmp_path: Path) -> None:
        """What is prewarmed for it are the kernels that its calls have, and no other."""
        text = (
            '[[problems]]\nlayout = "ragged"\ngroups = 1\nmatrix = { n = 4096, k = 7168 }\n'
            "rows_per_group = { min = 1, max = 100 }\n"
        )
        path = tmp_path / "mine.toml"
        found: list[set[Config]] = []
        for more in ("", 'numerics = "invariant"\n'):
            path.write_text(text + more)
            plan = plans.load(path)
            found.append(set(plans.configs(plan, "sm_90a")))
            path.write_text(plans.text(plan))  # as it is written, it is read

            assert set(plans.configs(plans.load(path), "sm_90a")) == found[-1]
        fast, invariant = found

        assert any(config.schedule.split_k > 1 for config in fast)  # type: ignore[attr-defined]
        assert all(config.schedule.split_k == 1 for config in invariant)  # type: ignore[attr-defined]
        path.write_text(text)
        with settings.scope(numerics="invariant"):
            assert set(plans.configs(plans.load(path), "sm_90a")) == invariant


class TestACall:
    @pytest.fixture
    def hopper(self, monkeypatch: pytest.MonkeyPatch) -> list[GroupedGemmConfig]:
        """Whatever is called goes to a GPU that only notes by which kernel."""
        found: list[GroupedGemmConfig] = []

        def function(config: GroupedGemmConfig) -> Any:
            found.append(config)
            return lambda *_: None

        gpu = Emulated(arch=Arch.SM_90A, num_sms=132, function=function)
        monkeypatch.setattr(current.get(), "emulated", gpu)
        current.get().forget()
        return found

    @pytest.fixture
    def given(self) -> dict[str, torch.Tensor]:
        """One row, for whose product Hopper has a kernel with an order of its own."""
        a, a_scale = quantize.per_token_group(torch.ones(1, 7168))
        b, b_scale = quantize.per_block(torch.ones(1, 4096, 7168))
        offs = torch.tensor([1], dtype=torch.int32)
        return {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale, "offs": offs}

    def test_has_what_it_asks_for(
        self, hopper: list[GroupedGemmConfig], given: dict[str, torch.Tensor]
    ) -> None:
        for numerics in (None, "invariant", "fast"):
            for _ in range(2):  # the second is remembered
                jitgen.grouped_gemm(**given, numerics=numerics)  # type: ignore[arg-type]

        assert [config.schedule.one_group for config in hopper] == [True, False, True]

    def test_follows_a_setting_that_comes_late(
        self, hopper: list[GroupedGemmConfig], given: dict[str, torch.Tensor]
    ) -> None:
        """A call that was remembered before would go on with bits that another batch has not."""
        jitgen.grouped_gemm(**given)  # type: ignore[arg-type]
        with settings.scope(numerics="invariant"):
            jitgen.grouped_gemm(**given)  # type: ignore[arg-type]
            ((family,),) = current.get().families.values()  # as it is recorded
        jitgen.grouped_gemm(**given)  # type: ignore[arg-type]

        assert family.problem.numerics is Numerics.INVARIANT
        assert [config.schedule.one_group for config in hopper] == [True, False, True]

    def test_refuses_a_config_that_breaks_it(
        self, hopper: list[GroupedGemmConfig], given: dict[str, torch.Tensor]
    ) -> None:
        config = GroupedGemmConfig(
            layout=Layout.RAGGED, tile=Tile(m=64, n=64, k=128), schedule=SPLIT
        )
        with pytest.raises(InputError, match=r"split_k=2 where 1 keeps.*numerics='fast'"):
            jitgen.grouped_gemm(**given, config=config, numerics="invariant")  # type: ignore[arg-type]
        with settings.scope(numerics="invariant"):
            with pytest.raises(InputError, match="blocks of 128 bytes along K"):
                jitgen.grouped_gemm(**given, config=config)  # type: ignore[arg-type]
            jitgen.grouped_gemm(**given, config=config, numerics="fast")  # type: ignore[arg-type]
        other = replace(config, schedule=Schedule())
        jitgen.grouped_gemm(**given, config=other, numerics="invariant")  # type: ignore[arg-type]

        assert hopper == [config, other]

    def test_knows_no_other_word(self, given: dict[str, torch.Tensor]) -> None:
        with pytest.raises(InputError, match="numerics: must be one of fast, invariant, or None"):
            jitgen.grouped_gemm(**given, numerics="exact")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="numerics: must be one of fast, invariant, or None"):
            MoEConfig(hidden=8, intermediate=8, experts=2, top_k=1, numerics="exact")


def test_operations_that_split_by_experts_are_held_to_it_too() -> None:
    """`moe_fc2_dense` has split K as well; a config of it is refused where the process asks."""
    one = operation("moe_fc2_dense").problem_type(groups=8, m=8, n=1024, k=512)
    split = next(
        x for x in rules("sm_90a", "moe_fc2_dense").candidates(one) if x.schedule.split_k > 1
    )
    require_order(split, Arch.SM_90A, None)
    with (
        settings.scope(numerics="invariant"),
        pytest.raises(InputError, match="expert by expert"),
    ):
        require_order(split, Arch.SM_90A, None)


def test_what_starts_early_keeps_the_order() -> None:
    """A chain's kernels are the selector's but for when they load."""
    config = GroupedGemmConfig(
        layout=Layout.RAGGED,
        tile=Tile(m=64, n=64, k=128),
        schedule=Schedule(raster=1, stream_b=True, early_b=True),
    )

    assert check(config, "sm_90a")
    assert not rules("sm_90a", "grouped_gemm").sums.departure(config)
