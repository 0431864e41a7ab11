# SPDX-License-Identifier: Apache-2.0
"""The kernel engineer's commands: `run`, `diff`, `bench kernel`, `show --line-info`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jitgen import get_kernel, override
from jitgen.cache import Store
from jitgen.cli.diff_sides import counts, fields, text
from jitgen.compile import inspect
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.runtime.spec import spec_of
from tests import needs
from tests.cli.conftest import Jitgen, jitgen
from tests.compile.test_override import CONFIG, ONCE, TWICE, edited

__all__ = ["jitgen"]

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

NAME = CONFIG.name("cpu")
HOPPER = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_sm_90a"
PROBLEM = "2:12:40:48"


@pytest.fixture
def wider(tmp_path: Path) -> Path:
    """An edited kernel that gives the right result in another way."""
    return edited(CONFIG, tmp_path / "my.py", "BLOCK_M = 4 ", "BLOCK_M = 2 ").path


def steps(done: object) -> dict[str, str]:
    return {step["name"]: step["state"] for step in done.document["steps"]}  # type: ignore[attr-defined]


class TestRun:
    @pytest.mark.nightly
    def test_a_good_edit(self, wider: Path, jitgen: Jitgen) -> None:
        """Compiled, run with every edge and the problem, and timed beside the original."""
        done = jitgen(f"run {wider} --problem {PROBLEM} --json")
        mine, original = done.document["checks"]
        times = [each["time_us"] for each in done.document["times"]["kernels"]]

        assert done.code == 0
        assert steps(done) == {
            "compile": "ok",
            "emulate": "skipped",
            "check": "right",
            "time": "ok",
        }
        assert done.document["key"] != spec_of(CONFIG, Arch.CPU).key
        assert len(mine["rows"]) > len(original["rows"]) == 2
        assert {row["values"] for row in mine["rows"]} == {"integers", "random"}
        assert all(us > 0 for us in times)
        assert re.search(" the original .*x as fast", done.document["steps"][3]["detail"])

    @pytest.mark.nightly
    def test_a_wrong_edit(self, tmp_path: Path, jitgen: Jitgen) -> None:
        """It is not timed, and where it is wrong is told."""
        path = edited(CONFIG, tmp_path / "my.py", ONCE, TWICE).path
        done = jitgen(f"run {path} --problem {PROBLEM}")

        assert done.code == 1
        assert re.search(r"check +WRONG +.*my.py: [\d,]+ wrong values", done.out)
        assert re.search(r"time +skipped +it is wrong", done.out)
        assert "instead of" in done.out

    @pytest.mark.nightly
    def test_an_edit_that_crashes(self, tmp_path: Path, jitgen: Jitgen) -> None:
        """It costs a process of its own only."""
        before, after = "out[m0 + m, n0 + n] =", "out[m0 + m + (1 << 30), n0 + n] ="
        path = edited(CONFIG, tmp_path / "my.py", before, after).path
        done = jitgen(f"run {path} --json")

        assert (done.code, steps(done)["check"]) == (1, "failed")
        assert "killed by SIGSEGV" in done.document["checks"][0]["error"]

    def test_an_edit_that_does_not_compile(self, tmp_path: Path, jitgen: Jitgen) -> None:
        """The compiler's complaint names the file and its line."""
        path = edited(CONFIG, tmp_path / "my.py", ONCE, f"{ONCE} * factor").path
        line = path.read_text().split("\n").index(f"                {ONCE} * factor") + 1
        done = jitgen(f"run {path} --json")
        compiled = done.document["steps"][0]

        assert (done.code, steps(done)) == (1, {"compile": "failed"})
        assert "name 'factor' is not defined" in compiled["detail"]
        assert f"{path}:{line}" in compiled["detail"]

    def test_an_edit_that_raises(self, tmp_path: Path, jitgen: Jitgen) -> None:
        """What a file itself raises used to be told without its line, and some of it as "None"."""
        path = edited(CONFIG, tmp_path / "my.py", ONCE, "assert False").path
        line = path.read_text().split("\n").index("                assert False") + 1
        done = jitgen(f"run {path} --json")
        (step,) = done.document["steps"]

        assert re.fullmatch(rf"AssertionError \(at {path}:{line}, in \w+\)", step["detail"])

    @pytest.mark.parametrize(
        ("words", "code", "complaint"),
        [
            (
                "absent.py",
                2,
                "there is no file 'absent.py'; jitgen show NAME",
            ),
            ("{my} --problem 3:4", 2, "problem '3:4' is not G:M:N:K"),
            ("{my} --modes none", 2, "none"),
            ("{bad}", 2, "is no generated source"),
        ],
    )
    def test_bad_input(
        self, wider: Path, tmp_path: Path, jitgen: Jitgen, words: str, code: int, complaint: str
    ) -> None:
        bad = tmp_path / "bad.py"
        bad.write_text("import this\n", encoding="utf-8")
        done = jitgen(f"run {words.format(my=wider, bad=bad)}")

        assert done.code == code
        assert complaint in done.err
        assert done.err.count("error: ") == 1
        assert jitgen(f"run {words.format(my=wider, bad=bad)} --json").document["error"]

    def test_where_compiling_is_off(
        self, wider: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch, jitgen: Jitgen
    ) -> None:
        monkeypatch.setenv("JITGEN_ON_MISS", "error")
        monkeypatch.setenv("JITGEN_CACHE_DIR", str(cache_root))
        done = jitgen(f"run {wider} --json")

        assert (done.code, steps(done)) == (3, {"compile": "skipped"})

    @pytest.mark.nightly
    def test_where_only_the_edit_is_compiled(
        self, wider: Path, cache_root: Path, monkeypatch: pytest.MonkeyPatch, jitgen: Jitgen
    ) -> None:
        """The original is not compiled for it where compiling is off."""
        monkeypatch.setenv("JITGEN_CACHE_DIR", str(cache_root))
        assert get_kernel(override(wider)).tier == "compiled"
        monkeypatch.setenv("JITGEN_ON_MISS", "error")
        done = jitgen(f"run {wider} --problem {PROBLEM} --json")
        beside = jitgen(f"bench kernel {wider} {NAME}")

        assert (done.code, beside.code) == (0, 3)
        assert "the original is not compiled" in done.document["steps"][3]["detail"]
        assert f"{NAME} is not compiled, and compiling is off" in beside.err
        assert Store.open(cache_root).read(spec_of(CONFIG, Arch.CPU).key) is None

    @pytest.mark.nightly
    def test_on_hopper(self, tmp_path: Path, jitgen: Jitgen) -> None:
        """Without a GPU the emulator proves it, and finds what is wrong."""
        config, _ = GroupedGemmConfig.parse(HOPPER)
        good = edited(config, tmp_path / "h.py", "NUM_STAGES = 10", "NUM_STAGES = 3", "sm_90a")
        done = jitgen(f"run {good.path} --modes eager --json")

        assert (done.code, steps(done)["emulate"]) == (0, "right")
        assert steps(done)["check"] == steps(done)["time"] == "skipped"
        assert done.document["emulated"][0]["right"]

    @pytest.mark.nightly
    def test_a_race_on_hopper(self, tmp_path: Path, jitgen: Jitgen) -> None:
        config, _ = GroupedGemmConfig.parse(HOPPER)
        before = "        scales.pipeline.consumer_wait(scale)\n"
        path = edited(config, tmp_path / "h.py", before, "", "sm_90a").path
        done = jitgen(f"run {path} --problem 2:40:64:256")

        assert done.code == 1
        assert re.search("emulate +(WRONG|failed)", done.out)


class TestDiff:
    def test_an_edit(self, wider: Path, jitgen: Jitgen) -> None:
        """Of host kernels there are config and source."""
        done = jitgen(f"diff {NAME} {wider} --json")
        lines = jitgen(f"diff {NAME} {wider} --source")
        found = done.document

        assert (done.code, lines.code) == (0, 0)
        assert (found["config"], found["derived"], found["same"]) == ([], [], False)
        assert found["key_document"][0]["field"] == "override"
        assert (found["source"]["added"], found["source"]["removed"]) == (1, 1)
        assert "-BLOCK_M = 4 " in lines.out
        assert "+BLOCK_M = 2 " in lines.out
        assert found["ptx"] is None
        assert "host" in found["missing"]["sass"]
        assert jitgen(f"diff {NAME} {wider} --exit-code").code == 1
        assert jitgen(f"diff {NAME} {NAME} --exit-code").code == 0

    @pytest.mark.nightly
    def test_two_configs_of_hopper(self, jitgen: Jitgen) -> None:
        other = HOPPER.replace("t64x64", "t64x128")
        found = jitgen(f"diff {HOPPER} {other} --json").document
        registers = {row["field"]: (row["a"], row["b"]) for row in found["derived"]}

        assert found["config"] == [{"field": "tile.n", "a": 64, "b": 128}]
        assert registers["acc_registers"] == (64, 128)
        assert not found["ptx"]["same"]
        assert found["ptx"]["counts"]
        assert {"code_bytes", "mbarriers"} <= {row["field"] for row in found["resources"]}
        if "sass" not in found["missing"]:
            assert found["sass"]["counts"][0]["instruction"] == "FFMA"

    def test_two_versions_of_a_template(self, tmp_path: Path, jitgen: Jitgen) -> None:
        from jitgen import templates

        old = tmp_path / "cpu"
        old.mkdir()
        entry = (templates.ROOT / "cpu/grouped_gemm.py.jinja").read_text(encoding="utf-8")
        (old / "grouped_gemm.py.jinja").write_text(f"{entry}\n# the end\n", encoding="utf-8")
        done = jitgen(f"diff {NAME} --templates {tmp_path} installed --source")

        assert done.code == 0
        assert "-# the end" in done.out

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (NAME, "give two kernels, or one and --templates"),
            (f"{NAME} {NAME} --templates a b", "give two kernels, or one and --templates"),
            (f"{NAME} unknown", "'unknown' is no kernel name"),
            (f"{NAME} absent.py", "absent.py cannot be read"),
            ("my.py --templates a b", "name a kernel, not a file"),
            (f"{NAME} --templates /nowhere installed", "/nowhere has no template cpu/grouped_gemm"),
            (f"{NAME} {NAME} --ptx", "there is no ptx: kernels of the host have none"),
            (f"{NAME} {NAME} --sass --no-compile", "--sass needs the compiler"),
        ],
    )
    def test_bad_input(self, jitgen: Jitgen, words: str, complaint: str) -> None:
        done = jitgen(f"diff {words}")

        assert done.code == 2
        assert complaint in done.err

    def test_parts(self) -> None:
        """Fields by their paths, numbers by the largest change, lines as a patch has them."""
        assert fields({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": None}) == [
            {"field": "a.c", "a": 2, "b": 3},
        ]
        assert counts({"MOV": 2, "ADD": 1}, {"ADD": 9, "MOV": 1}) == [
            {"instruction": "ADD", "a": 1, "b": 9},
            {"instruction": "MOV", "a": 2, "b": 1},
        ]
        assert text("a\nb", "a\nc\nd", ("x", "y"), 0) == {
            "same": False,
            "added": 2,
            "removed": 1,
            "diff": "--- x\n+++ y\n@@ -2 +2,2 @@\n-b\n+c\n+d",
        }


class TestBenchKernel:
    @pytest.mark.nightly
    def test_beside_each_other(self, wider: Path, jitgen: Jitgen) -> None:
        done = jitgen(f"bench kernel {NAME} {wider} --problem {PROBLEM} --problem 1:3:16:16 --json")
        found = done.document

        assert done.code == 0
        assert [kernel["title"] for kernel in found["kernels"]] == [NAME, str(wider)]
        assert len({kernel["key"] for kernel in found["kernels"]}) == 2
        for problem in found["problems"]:
            assert [each["title"] for each in problem["times"]["kernels"]] == [NAME, str(wider)]
            assert all(each["time_us"] > 0 for each in problem["times"]["kernels"])
            assert problem["times"]["flop"] > 0

    @pytest.mark.nightly
    def test_for_people(self, jitgen: Jitgen) -> None:
        done = jitgen(f"bench kernel {NAME} --problem {PROBLEM}")

        assert done.code == 0
        assert re.search(r"1\.000 .*" + NAME, done.out)

    @pytest.mark.nightly
    def test_an_operation_whose_calls_have_numbers(self, jitgen: Jitgen) -> None:
        """Times of `route` ended in an AttributeError: its k is no tensor."""
        done = jitgen("bench kernel route_softmax_bf16_e32_cpu --json")

        assert done.code == 0, done
        assert done.document["problems"][0]["times"]["bytes"] > 0

    @pytest.mark.nightly
    def test_nothing_wrong_is_timed(self, tmp_path: Path, jitgen: Jitgen) -> None:
        path = edited(CONFIG, tmp_path / "my.py", ONCE, TWICE).path
        done = jitgen(f"bench kernel {NAME} {path} --problem {PROBLEM} --json")

        assert done.code == 1
        assert done.document["problems"][0]["times"] is None
        assert [check["right"] for check in done.document["problems"][0]["checks"]] == [True, False]

    @pytest.mark.parametrize(
        ("words", "code", "complaint"),
        [
            ("", 2, "Missing argument"),
            ("unknown", 2, "'unknown' is no kernel name"),
            (f"{NAME} {NAME}", 2, "is named twice"),
            (f"{NAME} --problem 1:2", 2, "is not G:M:N:K"),
            (f"{NAME} {HOPPER}", 2, "do not compute the same on the same target"),
            (f"{NAME} {NAME.replace('_f32_t8', '_bf16_t8')}", 2, "differ in more than how"),
            (HOPPER, 1, "no GPU for sm_90a is here"),
        ],
    )
    def test_bad_input(self, jitgen: Jitgen, words: str, code: int, complaint: str) -> None:
        done = jitgen(f"bench kernel {words}")

        assert (done.code, complaint in done.err) == (code, True)


class TestShow:
    @pytest.mark.parametrize("stage", ["ptx", pytest.param("sass", marks=pytest.mark.nightly)])
    def test_with_lines(self, jitgen: Jitgen, stage: str) -> None:
        """Before the instructions of a line stands that line of the source."""
        done = jitgen(f"show {HOPPER} --{stage} --line-info --json")
        if "nvdisasm" in done.err:
            pytest.skip("nvdisasm is not installed")
        source = jitgen(f"show {HOPPER} --source").out.split("\n")
        rows, lines = done.document[stage].split("\n"), done.document["lines"]
        told = [row.strip() for row in rows if re.match(r"\t// \d+: ", row)]

        assert len(rows) == len(lines)
        assert len(told) > 100
        for each in told:
            number, _, text = each.removeprefix("// ").partition(": ")
            assert source[int(number) - 1].strip() == text
        assert not re.search(r"^\s*(\.loc|\.file|//##)", done.document[stage], re.MULTILINE)
        assert "/tmp" not in done.document[stage]

    @pytest.mark.nightly
    def test_a_file(self, wider: Path, jitgen: Jitgen) -> None:
        done = jitgen(f"show {wider} --source")
        key = jitgen(f"show {wider} --key --json").document
        jitgen(f"run {wider} --problem {PROBLEM}")
        entry = jitgen(f"show {key['key'][:12]} --json").document["entry"]
        again = jitgen(f"show {key['key'][:12]} --key --json").document

        assert done.out == wider.read_text(encoding="utf-8")
        assert "override" in key["key_document"]
        assert again["key_document"] == key["key_document"]
        assert entry["edited"] is True

    @pytest.mark.nightly
    def test_resources_of_a_file(self, tmp_path: Path, jitgen: Jitgen) -> None:
        """Its own shared memory, not its config's, and how many WGMMAs wait for each other."""
        config, _ = GroupedGemmConfig.parse(HOPPER)
        mine = edited(config, tmp_path / "h.py", "NUM_STAGES = 10", "NUM_STAGES = 3", "sm_90a")
        own, original = (
            jitgen(f"show {each} --resources --json").document["resources"]
            for each in (mine.path, HOPPER)
        )
        saved = original["dynamic_shared_bytes"] - own["dynamic_shared_bytes"]

        assert 7 * 128 * 128 < saved < 8 * 128 * 128
        if inspect._nvdisasm() is None:
            pytest.skip("nvdisasm is not installed")
        assert own["wgmmas"] >= 3 * own["wgmma_waits"] > 0

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (f"{HOPPER} --line-info", "--line-info goes with --ptx or --sass"),
            (f"{HOPPER} --source --line-info", "--line-info goes with --ptx or --sass"),
            (f"{NAME} --ptx --line-info", "runs on the host"),
            ("absent.py", "absent.py cannot be read"),
        ],
    )
    def test_bad_input(self, jitgen: Jitgen, words: str, complaint: str) -> None:
        done = jitgen(f"show {words}")

        assert (done.code, complaint in done.err) == (2, True)
