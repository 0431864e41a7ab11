# SPDX-License-Identifier: Apache-2.0
"""`jitgen configs`, `select`, `show` and `prewarm`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jitgen import plans, select
from jitgen.cache import Store
from jitgen.cli import main
from jitgen.compile.workers import Outcome, OutcomeKind
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.settings import settings
from jitgen.targets.legality import check, rules, target
from tests.cli.conftest import Jitgen

CPU = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t16x64x128_c1x1_acc1_cpu"
GPU = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a"
REFUSED = GPU.replace("t128x128", "t256x192")


def test_configs_are_names_that_parse_and_are_legal(jitgen: Jitgen) -> None:
    done = jitgen("configs", "--arch", "sm_120a", "--layout", "ragged", "--scales", "mx32")
    names = done.out.split()

    assert len(names) > 50
    for name in names:
        config, arch = GroupedGemmConfig.parse(name)
        assert arch is Arch("sm_120a")
        assert config.operands.scale_granularity == "mx32"
        assert check(config, arch)
    assert f"{len(names):,} legal configs of sm_120a" in done.err


def test_configs_all_gives_code_and_reason(jitgen: Jitgen) -> None:
    words = ("configs", "--arch", "sm_120a", "--layout", "ragged", "--scales", "block128", "--all")
    words += ("--dtype", "e4m3", "--out-dtype", "bf16")
    done, document = jitgen(*words), jitgen(*words, "--json").document
    refused = [config for config in document["configs"] if not config["ok"]]

    assert refused
    assert all(config["code"].startswith("E_") and config["reason"] for config in refused)
    assert all(config["derived"] for config in document["configs"] if config["ok"])
    assert f"{len(refused):,} refused" in done.err
    assert len(done.out.splitlines()) == len(document["configs"]) + 1
    assert all(config["name"] in done.out for config in refused)


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_configs_filter_types(jitgen: Jitgen, dtype: str) -> None:
    done = jitgen("configs", "--arch", "cpu", "--dtype", dtype, "--out-dtype", "f32")

    assert done.out
    for name in done.out.split():
        operands = GroupedGemmConfig.parse(name)[0].operands
        assert (operands.a_dtype, operands.out_dtype) == (dtype, "f32")


def test_configs_follow_the_arch_setting(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEN_ARCH", "sm_120a")

    few = ("--layout", "masked", "--set", "tile_m=64")
    assert jitgen("configs", *few, "--json").document["arch"] == "sm_120a"


def test_select_says_which_and_why(jitgen: Jitgen) -> None:
    words = "select -g 8 -m 4096 -n 4104 -k 7168 --layout masked --arch sm_90a"  # never measured
    done, document = jitgen(words), jitgen(words, "--json").document

    assert done.code == 0
    assert done.out.splitlines()[0] == document["name"]
    assert document["why"] in done.out
    assert document["candidates"][0]["name"] == document["name"]
    costs = [candidate["cost_us"] for candidate in document["candidates"]]
    assert costs == sorted(costs)
    assert "_masked_" in document["name"]


def run(*words: str) -> int:
    """Run a command line with words that have spaces in them."""
    return main.run(list(words))


class TestDevice:
    SIZES = ("-g", "32", "-m", "640", "-n", "4096", "-k", "7168")

    def test_select_for_a_device(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A device says its target, in whatever case; the choice is that of JITGEN_DEVICE."""
        assert run("select", *self.SIZES, "--device", "nvidia h100 pcie", "--json") == 0
        document = json.loads(capsys.readouterr().out)
        problem = GroupedGemmProblem(layout="ragged", groups=32, m=640, n=4096, k=7168)
        here, there = (
            select(problem, "sm_90a", device=name).candidates
            for name in ("NVIDIA H200", "NVIDIA H100 PCIe")
        )

        assert document["arch"] == "sm_90a"
        costs = [candidate["cost_us"] for candidate in document["candidates"]]
        assert sorted(costs) == sorted(candidate.cost for candidate in there)
        assert sorted(costs) != sorted(candidate.cost for candidate in here)

    def test_prewarm_for_a_device(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What is compiled is what calls choose where JITGEN_DEVICE says the same."""
        assert run("prewarm", "deepseek-v3", "--device", "NVIDIA H20", "--dry-run", "--json") == 0
        found = [row["name"] for row in json.loads(capsys.readouterr().out)["kernels"]]
        with settings.scope(device="NVIDIA H20"):
            wanted = plans.configs(plans.load("deepseek-v3"), "sm_90a")

        assert found == [config.name("sm_90a") for config in wanted]

    def test_prewarm_for_every_device(self, capsys: pytest.CaptureFixture[str]) -> None:
        """
        Without a device a target's first one stood for all of them, and frozen calls on an H100
        raised. The last line says whose kernels they are.
        """
        words = ("prewarm", "deepseek-v3", "--dry-run", "--json")
        every = [device.name for device in target("sm_90a").devices]
        found: dict[str, set[str]] = {}
        for name in ("", *every):
            of_one = ("--device", name) if name else ("--arch", "sm_90a")
            assert run(*words, *of_one) == 0
            document = json.loads(capsys.readouterr().out)
            assert document["devices"] == {"sm_90a": [name] if name else every}
            found[name] = {row["name"] for row in document["kernels"]}

        assert found[""] == set().union(*(found[name] for name in every))
        assert all(found[name] < found[""] for name in every)
        several = [*words, "--device", every[0], "--device", "b200"]
        assert run(*several) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["devices"] == {"sm_90a": [every[0]], "sm_100a": ["NVIDIA B200"]}
        assert run("prewarm", "deepseek-v3", "--arch", "sm_90a", "--dry-run") == 0
        *_, last = capsys.readouterr().err.splitlines()
        assert last == f"chosen for sm_90a on {', '.join(every)}"

    @pytest.mark.parametrize(
        "words", [("select", *SIZES), ("prewarm", "deepseek-v3", "--dry-run")], ids=lambda w: w[0]
    )
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (
                ("--device", "NVIDIA H3"),
                "error: device 'NVIDIA H3' is not known; allowed: x86-64 server, NVIDIA B200, ",
            ),
            (
                ("--device", "NVIDIA H200", "--arch", "cpu"),
                "error: device 'NVIDIA H200' of cpu is not known; allowed: x86-64 server\n",
            ),
            (
                ("--device", "NVIDIA H3", "--arch", "cpu"),
                "error: device 'NVIDIA H3' of cpu is not known; allowed: x86-64 server\n",
            ),
        ],
    )
    def test_unknown(
        self,
        capsys: pytest.CaptureFixture[str],
        words: tuple[str, ...],
        options: tuple[str, ...],
        said: str,
    ) -> None:
        assert run(*words, *options) == 2
        assert said in capsys.readouterr().err


def test_select_of_types_without_a_kernel(jitgen: Jitgen) -> None:
    done = jitgen("select -g 8 -m 8 -n 64 -k 64 --dtype f32 --arch sm_90a")

    assert done.code == 2
    assert done.err.startswith("error: ")


def test_weights_may_have_another_type(jitgen: Jitgen) -> None:
    """On the command line, and an error says both."""
    words = "select -g 8 -m 64 -n 64 -k 64 --b-dtype e2m1 --arch {} --scales {}"
    done = jitgen(words.format("cpu", "mx32"), "--json")
    operands = GroupedGemmConfig.parse(done.document["name"])[0].operands

    assert (operands.a_dtype, operands.b_dtype, operands.scale_granularity) == (
        "e4m3",
        "e2m1",
        "mx32",
    )
    refused = jitgen(words.format("sm_90a", "block128"))
    assert refused.code == 2
    assert "sm_90a has no kernel for e4m3 x e2m1 -> bf16 with block128 scales" in refused.err


def test_operands_without_scales_are_told_what_to_say(jitgen: Jitgen) -> None:
    """The default is for FP8; what the error says works."""
    words = "select -g 8 -m 64 -n 64 -k 64 --dtype bf16 --arch sm_90a"
    refused = jitgen(words)

    assert refused.code == 2
    assert "block128 scales (where operands have no scales, say tensor)" in refused.err
    assert jitgen(words, "--scales", "tensor").code == 0


def test_show_summary_of_what_is_not_compiled(jitgen: Jitgen) -> None:
    done, document = jitgen("show", GPU), jitgen("show", GPU, "--json").document

    assert "cached" in done.out
    assert document["entry"] is None
    assert document["derived"]["threads"] == 384


def test_show_source_needs_no_compiler(jitgen: Jitgen, tmp_path: Path) -> None:
    done = jitgen("show", CPU, "--source")
    file = tmp_path / "kernel.py"
    written = jitgen("show", CPU, "--source", "-o", str(file), "--json")

    assert done.out.splitlines()[0].startswith("# Generated by jitgen")
    compile(done.out, CPU, "exec")
    assert file.read_text() == done.out == written.document["source"]
    assert f"wrote {file}" in written.err
    assert list(Store.open().entries()) == []


def test_show_what_a_source_is_made_of(jitgen: Jitgen) -> None:
    """The templates with their lines, and each line with its template."""
    done, document = jitgen("show", CPU, "--partials"), jitgen("show", CPU, "--partials", "--json")
    rows = [line.split() for line in done.out.splitlines()]
    parts = document.document["partials"]
    lined = jitgen("show", CPU, "--source", "--from")
    with_lines = jitgen("show", CPU, "--source", "--from", "--json").document
    first, last = parts[-1]["first"], parts[-1]["last"]

    assert rows[0] == ["lines", "own", "template"]
    assert rows[1][2] == parts[0]["partial"] == "cpu/grouped_gemm.py.jinja"
    assert rows[-1] == [f"{first}-{last}", str(parts[-1]["own_lines"]), parts[-1]["partial"]]
    assert lined.out.lstrip().startswith("shared/header.py.jinja:")
    sources = [line.partition("|")[2][1:] for line in lined.out.splitlines()]
    assert sources == with_lines["source"].splitlines()
    assert with_lines["origins"][first - 1]["partial"] == parts[-1]["partial"]
    assert jitgen("show", CPU, "--from").code == 2


def test_show_key(jitgen: Jitgen) -> None:
    done, document = jitgen("show", GPU, "--key"), jitgen("show", GPU, "--key", "--json").document

    assert done.out == f"{document['key']}\n"
    assert len(document["key"]) == 64
    assert document["key_document"]["arch"] == "sm_90a"


@pytest.mark.parametrize("stage", ["ptx", "sass", "resources"])
def test_a_host_kernel_has_no_gpu_code(jitgen: Jitgen, stage: str) -> None:
    done = jitgen("show", CPU, f"--{stage}")

    assert (done.code, done.out) == (2, "")
    assert f"no {stage}" in done.err


def test_show_refused_config_names_rule_and_neighbour(jitgen: Jitgen) -> None:
    done = jitgen("show", REFUSED, "--source")

    assert done.code == 2
    assert "E_REGS" in done.err
    assert "nearest legal config is grouped_gemm_" in done.err


def test_show_does_not_compile_where_it_may_not(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEN_ON_MISS", "error")
    done = jitgen("show", GPU, "--resources")

    assert done.code == 1
    assert "compiling is off" in done.err


def test_show_cannot_write(jitgen: Jitgen, tmp_path: Path) -> None:
    path = tmp_path / ("long" * 100)
    done = jitgen("show", CPU, "--key", "-o", str(path))

    assert done.code == 1
    assert "Could not open file" in done.err


def test_dry_run_and_check_list_a_plan(jitgen: Jitgen) -> None:
    wanted = [c.name(Arch.SM_90A) for c in plans.configs(plans.load("deepseek-v3"), "sm_90a")]
    words = ("prewarm", "deepseek-v3", "--arch", "sm_90a")
    dry, check_ = jitgen(*words, "--dry-run"), jitgen(*words, "--check", "--json")

    assert dry.code == 0
    assert [line.split()[-1] for line in dry.out.splitlines()[1:]] == wanted
    assert check_.code == 3
    assert [kernel["name"] for kernel in check_.document["kernels"]] == wanted
    assert check_.document["counts"]["would_compile"] == len(wanted)
    assert not check_.document["ok"]
    assert list(Store.open().entries()) == []


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [name for name in plans.names() if name != "gpt-oss-hopper"])
def test_a_shipped_plan_for_both_blackwells(jitgen: Jitgen, name: str) -> None:
    """What would be compiled are candidates, of both targets, and nothing is compiled."""
    archs = ("sm_100a", "sm_103a")
    done = jitgen("prewarm", name, "--arch", ",".join(archs), "--dry-run", "--json")
    found = {kernel["name"] for kernel in done.document["kernels"]}
    candidates = {
        arch: {
            config.name(arch)
            for sweep in plans.load(name).served(arch)
            for config in rules(arch, sweep.problem.op).candidates(sweep.problem)
        }
        for arch in map(Arch, archs)
    }

    assert done.code == 0
    assert found <= set.union(*candidates.values())
    assert all(found & names for names in candidates.values())


def test_prewarm_a_shard(jitgen: Jitgen) -> None:
    whole = jitgen("prewarm deepseek-v3 --arch cpu --dry-run --json").document["kernels"]
    parts = [
        jitgen(f"prewarm deepseek-v3 --arch cpu --dry-run --json --shard {i}/3").document["kernels"]
        for i in range(3)
    ]

    assert sorted(row["key"] for part in parts for row in part) == sorted(r["key"] for r in whole)
    refused = jitgen("prewarm deepseek-v3 --arch cpu --dry-run --shard 3/3")
    assert refused.code == 2
    assert "shard '3/3' is not allowed: it must be i/n" in refused.err


def test_prewarm_within_a_budget(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that suddenly asks for more kernels than foreseen compiles none of them."""
    monkeypatch.setenv("JITGEN_MAX_KERNELS", "16")
    done = jitgen("prewarm deepseek-v3 --arch sm_90a --dry-run --shard 0/4 --json")

    assert done.code == 1
    assert done.document["ok"] is False
    assert (done.document["budget"], done.document["wanted"]) == (16, 34)
    assert len(done.document["beyond"]) == 18
    assert "34 kernels asked for, the budget is 16" in done.err
    assert "--device asks for those of some devices alone" in done.err
    assert jitgen("prewarm deepseek-v3 --arch sm_90a --dry-run --budget 34").code == 0
    assert jitgen("prewarm deepseek-v3 --device h200 --dry-run --budget 30").code == 0


def test_targets_and_configs_are_put_together(jitgen: Jitgen) -> None:
    words = ("prewarm", "deepseek-v3", "--arch", "sm_90a,cpu", "--config", CPU, "--config", CPU)
    document = jitgen(*words, "--dry-run", "--json").document
    names = [kernel["name"] for kernel in document["kernels"]]

    assert len(names) == len(set(names))
    assert CPU in names
    assert {name.endswith("_cpu") for name in names} == {True, False}


def test_prewarm_compiles_once_then_finds(jitgen: Jitgen) -> None:
    """One real compile: prewarm it, check it, show it, all by name and by key."""
    first = jitgen("prewarm", "--config", CPU, "--jobs", "1", "--json")
    assert first.code == 0, first.err
    kernel = first.document["kernels"][0]
    assert (kernel["state"], kernel["name"]) == ("compiled", CPU)
    assert "[1/1] " in first.err

    again = jitgen("prewarm", "--config", CPU, "--check")
    assert again.code == 0
    assert again.out.splitlines()[1].split() == ["cached", CPU]
    assert jitgen("cache", "explain", CPU, "--json").document["state"] == "hit"

    shown = jitgen("show", kernel["key"][:8], "--json").document
    assert (shown["name"], shown["entry"]["files"]["kernel.so"] > 0) == (CPU, True)
    assert jitgen("show", kernel["key"][:8]).out.startswith("name ")
    by_key, by_name = (jitgen("show", text, "--source").out for text in (kernel["key"][:8], CPU))
    assert by_key == by_name


def test_a_kernel_that_fails_costs_itself(jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: str, tasks: list[Any], **__: Any) -> Iterator[Outcome]:
        for index, task in enumerate(tasks):
            yield Outcome(task=task, index=index, kind=OutcomeKind.CRASH, error="signal 11")

    monkeypatch.setattr("jitgen.compile.workers.run", crash)
    done = jitgen("prewarm", "--config", CPU)

    assert done.code == 1
    assert f"failed: {CPU}: signal 11" in done.err
    assert "1 failed" in done.err


def test_prewarm_into_a_cache_that_may_not_be_written(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGEN_CACHE", "ro")

    assert jitgen("prewarm", "--config", CPU).code == 1
    assert jitgen("prewarm", "--config", CPU, "--check").code == 3
