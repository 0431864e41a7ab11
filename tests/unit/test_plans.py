# SPDX-License-Identifier: Apache-2.0
"""Plans: what they stand for, that their configs are complete and minimal, and what they refuse."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jitgen import plans
from jitgen.cache import Store
from jitgen.config import Arch, Layout
from jitgen.config.operation import operation
from jitgen.errors import PlanError, UnsupportedConfig
from jitgen.runtime.session import select
from jitgen.targets.legality import rules, target
from tests.model_configs import LAYER_ALONE
from tests.model_configs import MODELS as COMPUTED
from tests.targets import EACH

GOOD = """
description = "two matrices"

[[problems]]
layout = ["ragged", "masked"]
groups = 8
rows_per_group = { min = 4, max = 300 }
matrix = [{ n = 4096, k = 7168 }, { n = 7168, k = 2048 }]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_deepseek_v3_is_shipped() -> None:
    plan = plans.load("deepseek-v3")

    assert "deepseek-v3" in plans.names()
    assert {sweep.problem.groups for sweep in plan.sweeps} == {8, 32, 256}
    assert {sweep.problem.layout for sweep in plan.sweeps} == set(Layout)
    assert {(sweep.problem.n, sweep.problem.k) for sweep in plan.sweeps} == {
        (4096, 7168),
        (7168, 2048),
    }
    assert {(sweep.min_rows, sweep.max_rows) for sweep in plan.sweeps} == {(1, 8192)}


LACKING = {
    ("quantize", "cpu"),  # where torch's operations quantise
    ("llama-4", "sm_120a"),  # which has no scales for rows
    ("llama-4", "sm_121a"),
    # whose tensor cores take e2m1 as it is
    *(("gpt-oss-hopper", arch) for arch in ("sm_100a", "sm_103a", "sm_120a", "sm_121a")),
}


def some_devices(arch: Arch) -> tuple[str, ...]:
    """Return the first and the last device of a target, which differ most, for every push."""
    devices = target(arch).devices
    return tuple(dict.fromkeys((devices[0].name, devices[-1].name)))


def every_device(arch: Arch) -> tuple[str, ...]:
    return tuple(device.name for device in target(arch).devices)


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    "devices_of", [some_devices, pytest.param(every_device, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("name", plans.names())
@pytest.mark.parametrize("arch", EACH)
def test_shipped_plans_ask_for_candidates_alone(
    name: str, arch: Arch, devices_of: Callable[[Arch], tuple[str, ...]]
) -> None:
    """Every target has kernels for a shipped plan, and prewarms nothing but candidates."""
    plan, devices = plans.load(name), devices_of(arch)
    if (name, str(arch)) in LACKING:
        with pytest.raises(UnsupportedConfig, match=f"{arch} has no kernel for"):
            plans.configs(plan, arch, devices=devices)
        return
    wanted = plans.configs(plan, arch, devices=devices)
    known = {
        config
        for sweep in plan.served(arch)
        for config in rules(arch, sweep.problem.op).candidates(sweep.problem)
    }
    for problem in plan.problems(arch):
        of = operation(problem.op)
        for device in devices if of.beside else ():
            known |= {*of.launched_beside(problem, arch, select, device)}

    assert wanted
    assert set(wanted) <= known


MODELS = {name: configs[0] for name, configs in {**COMPUTED, **LAYER_ALONE}.items()}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_both_gemms_in_every_layout(name: str) -> None:
    config = MODELS[name]
    experts, hidden, inner = (
        config[word] for word in ("num_experts", "hidden_size", "moe_intermediate_size")
    )
    sweeps = plans.load(name).sweeps
    found = {(each.problem.layout, each.problem.n, each.problem.k) for each in sweeps}

    assert max(each.problem.groups for each in sweeps if each.problem.k == hidden) >= experts
    assert found >= {
        (layout, n, k) for layout in Layout for n, k in ((2 * inner, hidden), (hidden, inner))
    }
    assert {(each.min_rows, each.max_rows) for each in sweeps} == {(1, 8192)}


def test_what_is_optional_is_left_out_where_there_is_no_kernel(tmp_path: Path) -> None:
    """A plan may name types that only some targets multiply."""
    optional = GOOD.split("\n\n", 1)[1] + 'dtype = "bf16"\nscale_granularity = "tensor"\n'
    both = plans.load(written(tmp_path, GOOD + optional + "optional = true\n"))
    types = {
        arch: {config.parameters()["a_dtype"] for config in plans.configs(both, arch)}
        for arch in ("sm_90a", "sm_100a")
    }

    assert types == {"sm_90a": {"e4m3", "bf16"}, "sm_100a": {"e4m3"}}
    required = plans.load(written(tmp_path, GOOD + optional))
    with pytest.raises(UnsupportedConfig, match="bf16"):
        plans.configs(required, "sm_100a")
    alone = plans.load(written(tmp_path, optional + "optional = true\n"))
    with pytest.raises(UnsupportedConfig, match="anything in the plan mine"):
        plans.configs(alone, "sm_100a")


def test_what_is_optional_is_left_out_where_its_sizes_are_refused() -> None:
    """K = 2880 of gpt-oss is no whole number of the 128 values that a B200's TMA unit unpacks."""
    mixed = {
        name: any("e4m3_e2m1" in each.slug for each in plans.load(name).problems("sm_100a"))
        for name in ("gpt-oss", "deepseek-v4-flash")
    }

    assert mixed == {"gpt-oss": False, "deepseek-v4-flash": True}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("draws", [1000, pytest.param(10_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("arch", EACH)
def test_configs_are_complete(arch: Arch, draws: int) -> None:
    """No problem inside the plan's ranges chooses a config that the plan leaves out."""
    plan, devices = plans.load("deepseek-v3"), some_devices(arch)
    chosen = set(plans.configs(plan, arch, devices=devices))
    served, chance = plan.served(arch), random.Random(1)
    for _ in range(draws):
        sweep = chance.choice(served)
        groups = sweep.problem.groups
        # Even over sizes, so that small ones are met as often as large ones.
        mean = sweep.min_rows * (sweep.max_rows / sweep.min_rows) ** chance.random()
        m = min(max(round(mean * groups), sweep.min_rows * groups), sweep.max_rows * groups)

        device = chance.choice(devices)
        assert select(replace(sweep.problem, m=m), arch, device=device).config in chosen


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arch", EACH)
def test_configs_are_minimal(arch: Arch) -> None:
    """Each config is chosen for a problem of the plan, on one of the devices."""
    plan, devices = plans.load("deepseek-v3"), some_devices(arch)
    wanted = set(plans.configs(plan, arch, devices=devices))
    for sweep in plan.served(arch):
        for rows in {*range(1, 33), *range(33, 8193, 31)}:
            problem = replace(sweep.problem, m=rows * sweep.problem.groups)
            wanted -= {select(problem, arch, device=device).config for device in devices}

    assert not wanted


def test_configs_of_a_narrow_range(tmp_path: Path) -> None:
    """A plan for one row count asks for one config of a device."""
    text = GOOD.replace("{ min = 4, max = 300 }", "40").replace('["ragged", "masked"]', '"ragged"')
    text = text.replace(", { n = 7168, k = 2048 }", "")
    plan = plans.load(written(tmp_path, text))
    (problem,) = plan.problems("sm_90a")

    for device in every_device(Arch.SM_90A):
        (config,) = plans.configs(plan, "sm_90a", devices=[device])
        assert config == select(problem, "sm_90a", device=device).config


def test_configs_are_in_the_order_of_their_names() -> None:
    names = [c.name("sm_90a") for c in plans.configs(plans.load("deepseek-v3"), "sm_90a")]

    assert names == sorted(set(names))


def test_lists_stand_for_each_with_each(tmp_path: Path) -> None:
    plan = plans.load(written(tmp_path, GOOD))

    assert plan.name == "mine"
    assert plan.description == "two matrices"
    assert len(plan.sweeps) == 4
    assert len({problem.layout for problem in plan.problems(Arch.CPU)}) == 2
    assert len(set(plan.problems(Arch.CPU))) == len(list(plan.problems(Arch.CPU)))


def test_weights_may_have_another_type(tmp_path: Path) -> None:
    plan = plans.load(
        written(
            tmp_path,
            """
            [[problems]]
            layout = "masked"
            groups = 8
            rows_per_group = 64
            matrix = { n = 512, k = 256 }
            dtype = ["e4m3", "e2m1"]
            b_dtype = "e2m1"
            scale_granularity = "mx32"
            """,
        )
    )
    configs = plans.configs(plan, Arch.CPU)

    assert {(c.operands.a_dtype, c.operands.b_dtype) for c in configs} == {
        ("e4m3", "e2m1"),
        ("e2m1", "e2m1"),
    }


def test_a_path_may_be_text(tmp_path: Path) -> None:
    assert plans.load(str(written(tmp_path, GOOD))).name == "mine"


def test_types_that_a_target_lacks_are_an_error(tmp_path: Path) -> None:
    plan = plans.load(written(tmp_path, GOOD + 'dtype = "f32"\n'))

    assert plans.configs(plan, "cpu")
    with pytest.raises(UnsupportedConfig):
        plans.configs(plan, "sm_90a")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("description", "descripton", r"no key 'descripton'; allowed: description, problems"),
        ('"two matrices"', "3", r"description must be a string \(got 3\)"),
        ("groups", "group", r"problem 1: no key 'group'; allowed: layout, groups"),
        ("groups = 8\n", "", r"problem 1: groups is required"),
        ("groups = 8", "groups = []", r"problem 1: groups: the list is empty"),
        ("groups = 8", "groups = 0", r"problem 1: groups: must be an integer of at least 1 \(got"),
        ("groups = 8", "groups = true", r"groups: must be an integer of at least 1 \(got True"),
        ('"ragged"', '"raged"', r"layout: must be one of ragged, contiguous, masked \(got 'raged'"),
        ("min = 4", "min = 400", r"rows_per_group: min must not be above max \(got 400 and 300"),
        ("min = 4, ", "", r"rows_per_group: min is required, as in { min = ..., max = ... }"),
        ("min = 4", "mni = 4, min = 1", r"rows_per_group: no key 'mni'; allowed: min, max"),
        ("min = 4", "min = 0.5", r"rows_per_group.min: must be an integer of at least 1"),
        ("{ n = 4096, k = 7168 }", "[4096, 7168]", r"matrix: must be a table { n = ..., k = ... }"),
        (
            "groups = 8",
            "op = 'gemm'\ngroups = 8",
            r"op: must be one of .*grouped_gemm, .*moe_fc2_dense, .*quantize, route, unpack",
        ),
        ("groups = 8", "op = ['x']\ngroups = 8", r"op: must be one of .* \(got \['x'\]"),
        ("groups = 8", "optional = 1\ngroups = 8", r"optional: must be true or false \(got 1\)"),
        ("groups = 8", "op = 3\ngroups = 8", r"op: must be one of .* \(got 3"),
        (
            "groups = 8",
            "activation = 'swiglu'\ngroups = 8",
            (
                r"no key 'activation' in one of grouped_gemm: it belongs to activation_backward "
                r"and activation_quantize; allowed"
            ),
        ),
        ("[[problems]]", "[problems]", r"problems must be a list of tables"),
        ("[[problems]]", "[[problems", r"is no TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Every error names the file, the key and what is allowed."""
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(PlanError, match=message) as caught:
        plans.load(path)

    assert "mine.toml" in str(caught.value)


SILU = """
[[problems]]
op = "activation_quantize"
layout = ["ragged", "masked"]
groups = 8
rows_per_group = { min = 4, max = 300 }
n = [2048, 1536]
power_of_two = [false, true]
"""


def test_another_operation(tmp_path: Path) -> None:
    """Its keys are its problem's fields, and what is left out has the default of these."""
    plan = plans.load(written(tmp_path, GOOD + SILU))
    found = [sweep.problem for sweep in plan.sweeps if sweep.problem.op == "activation_quantize"]

    assert len(plan.sweeps) == 4 + 8
    assert {(each.n, each.power_of_two) for each in found} == {
        (n, flag) for n in (2048, 1536) for flag in (False, True)
    }
    assert {each.activation for each in found} == {"swiglu"}
    assert {each.rows_per_group for each in found} == {4}
    for arch in Arch:
        ops = {config.op for config in plans.configs(plan, arch)}
        assert ops == {"grouped_gemm", "activation_quantize"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("n = [2048, 1536]\n", "", r"problem 1: n is required"),
        (
            "n = [2048, 1536]",
            "matrix = { n = 2048, k = 7168 }",
            r"no key 'matrix' in one of activation_quantize: it belongs to add_lora and grouped",
        ),
        ("n = [", "nn = [", r"problem 1: no key 'nn'; allowed: layout"),
        ('"masked"', '"contiguous"', r"problem 1: groups must be 1 for contiguous rows"),
        ("[false, true]", "1", r"power_of_two: must be true or false \(got 1\)"),
        (
            "groups = 8",
            'scale_granularity = "mx32"\ngroups = 8',
            r"one of block128, row",
        ),
    ],
)
def test_mistakes_of_another_operation(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SILU
    with pytest.raises(PlanError, match=message) as caught:
        plans.load(written(tmp_path, SILU.replace(old, new)))

    assert "mine.toml" in str(caught.value)


def test_kinds_that_no_kernel_has_are_an_error(tmp_path: Path) -> None:
    text = SILU + 'scale_granularity = "tensor"\n'
    with pytest.raises(UnsupportedConfig):
        plans.configs(plans.load(written(tmp_path, text)), "sm_90a")


def test_a_plan_without_problems_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="problems must be a list of tables"):
        plans.load(written(tmp_path, 'description = "nothing"\n'))


def test_unknown_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"no plan 'deepseek'; shipped plans: .*deepseek-v3"):
        plans.load("deepseek")
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        plans.load(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanError, match="is no TOML"):
        plans.load(tmp_path / "binary.toml")


@pytest.mark.parametrize("device", [(), ("NVIDIA H20",)])
def test_a_problem_without_a_kernel_is_named_by_file_and_entry(
    device: tuple[str, ...], tmp_path: Path
) -> None:
    """The sizes alone did not say which of fifty entries, of which of two plans, to correct."""
    entry = (
        '[[problems]]\nlayout = "ragged"\ngroups = 8\nrows_per_group = {{ min = 1, max = 64 }}\n'
    )
    entry += "matrix = {{ n = 128, k = {k} }}\n"
    file = tmp_path / "mine.toml"
    file.write_text(entry.format(k=128) + entry.format(k=77))

    with pytest.raises(UnsupportedConfig, match="K a multiple of 16") as caught:
        plans.configs(plans.load(file), "sm_90a", devices=device)
    assert str(caught.value).startswith(f"{file}: problem 2: ragged_e4m3_block128_bf16")
    assert caught.value.code == "E_SIZE"


def test_a_missing_bundle_proposes_a_command_that_works(
    tmp_path: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named the plan, and not its file: jitgen prewarm mine."""
    pytest.importorskip("zstandard")
    from jitgen.bundle.export import MissingKernels, export

    file = tmp_path / "my plans" / "mine.toml"
    file.parent.mkdir()
    file.write_text(
        '[[problems]]\nlayout = "ragged"\ngroups = 8\nrows_per_group = 4\n'
        "matrix = { n = 128, k = 128 }\n"
    )
    plan = plans.load(file)
    with pytest.raises(MissingKernels) as caught:
        export([plan], [Arch.parse("cpu")], tmp_path / "x.tar", Store.open(cache_root))
    words = shlex.split(str(caught.value).partition("compile them with: ")[2])

    assert words[:3] == ["jitgen", "prewarm", str(file)]
    assert plans.load(words[2]) == plan
