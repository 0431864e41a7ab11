# SPDX-License-Identifier: Apache-2.0
"""What docs/adding-a-target.md says is true: a folder of targets, one of templates, no more."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.third_party import installing

ROOT = Path(__file__).parents[2]
WORD = re.compile(r"sm_?90", re.IGNORECASE)

NAMED = {
    "jitgen/config/plugins.py": "the public constant Arch.SM_90A, and why names have a suffix",
    "jitgen/config/config.py": "a kernel's name as an example, in an error",
    "jitgen/config/grouped_gemm.py": "docstrings: an example, and what a field is for",
    "jitgen/ops/grouped_gemm/call.py": "docstrings: which sizes a GPU takes",
    "jitgen/config/grouped_gemm_wgrad.py": "a docstring: an example",
    "jitgen/ops/grouped_gemm_wgrad/call.py": "a docstring: which sizes a GPU takes",
    "jitgen/config/moe_decode.py": "a docstring: an example",
    "jitgen/config/moe_fc2_dense.py": "a docstring: an example",
    "jitgen/config/activation_backward.py": "a docstring: an example",
    "jitgen/config/add_lora.py": "a docstring: an example",
    "jitgen/config/combine_ranks.py": "a docstring: an example",
    "jitgen/config/dispatch.py": "a docstring: an example",
    "jitgen/ops/activation_backward/call.py": "docstrings: which sizes a GPU takes",
    "jitgen/ops/add_lora/call.py": "a docstring: which sizes a GPU takes",
    "jitgen/config/quantize.py": "a docstring: an example",
    "jitgen/config/route.py": "a docstring: an example",
    "jitgen/config/combine.py": "a docstring: an example",
    "jitgen/config/permute_quantize.py": "a docstring: an example",
    "jitgen/config/activation_quantize.py": "a docstring: an example",
    "jitgen/ops/activation_quantize/call.py": "docstrings: which sizes a GPU takes",
    "jitgen/layer/experts.py": "a docstring: which addresses and strides a GPU takes",
    "jitgen/targets/protocol.py": "docstrings: examples",
    "jitgen/targets/gemm.py": "a refusal says which target has what was asked for",
    "jitgen/targets/early.py": "a refusal says which target has what was asked for",
    "jitgen/compile/inspect.py": "a docstring",
    "jitgen/cli/demo.py": "the demonstration cross-compiles one kernel, and names a next command",
    "jitgen/cli/verify.py": "the help of an option says its default",
    "jitgen/bench/compiles.py": "a benchmark's kernels",
    "jitgen/emulator/machine/limits.py": "what hardware can hold, and which instructions it has",
    "jitgen/bench/processes.py": "a benchmark's kernel",
    "jitgen/bench/layer/ours.py": "the kernels of a suite of one GPU",
    "jitgen/bench/layer/ranks_deepseek.py": "names of another library",
    "jitgen/bench/layer/ranks_flashinfer.py": "names of another library",
    "jitgen/inspect/hardware.py": "what an SM of each family holds, for pages",
    "jitgen/plans/recording.py": "a docstring: an example",
    "jitgen/bench/hopper_fp4/run.py": "a suite of one GPU",
    "jitgen/bench/hopper_fp4/sides.py": "its kernels",
    "jitgen/emulator/report.py": "a docstring: an example",
    "cache/entry.py": "a docstring: an example",
    "templates/__init__.py": "a docstring: an example",
}
"""Files that may name the one GPU target, and what for: none of them has to change for another."""

TARGET = """
from functools import cache
from jitgen import templates
from jitgen.targets.cpu import Cpu
from jitgen.targets.cpu.grouped_gemm import GroupedGemm
from jitgen.targets.protocol import Template


class TwinGemm(GroupedGemm):
    def templates(self):
        entry = "twin/grouped_gemm.py.jinja"
        return (Template(root=templates.ROOT, entry=entry),)


class Twin(Cpu):
    name = family = "twin"
    operations = ("grouped_gemm",)

    @cache
    def rules(self, op):
        return TwinGemm()


TARGET = Twin()
"""
USE = """
import sys
sys.path.insert(0, {folder!r})
from jitgen.cli import main
from jitgen.config import Arch
import jitgen

assert jitgen.__file__.startswith({folder!r}), jitgen.__file__
assert "twin" in list(Arch)
name = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t16x64x128_c1x1_acc1_twin"
for words in (
    "configs --arch twin --layout masked --dtype bf16",
    "select --arch twin -g 4 -m 64 -n 128 -k 128",
    f"show {{name}} --source",
    f"prewarm --config {{name}} --dry-run",
    f"cache explain {{name}}",
):
    code = main.run(words.split())
    assert code == 0, (words, code)
"""


def test_only_these_files_name_a_target() -> None:
    """A rule that asks for a target by its name stands outside of the target's folder."""
    files = [*ROOT.glob("jitgen/**/*.py"), *ROOT.glob("cache/*.py")]
    files += [*ROOT.glob("templates/*.py"), *ROOT.glob("templates/shared/**/*")]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if path.is_file() and WORD.search(path.read_text(encoding="utf-8"))
    }
    found = {name for name in found if not name.startswith(("jitgen/targets/sm_", "jitgen/cache/"))}

    assert found - NAMED.keys() == set()
    assert NAMED.keys() - found == set(), "these name it no longer: take them off the list"


def test_two_folders_are_enough(tmp_path: Path) -> None:
    """A target and its template, added to a copy of jitgen, and every command knows it."""
    copy = tmp_path / "copy" / "jitgen"
    shutil.copytree(ROOT / "jitgen", copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "targets" / "twin").mkdir()
    (copy / "targets" / "twin" / "__init__.py").write_text(TARGET)
    (copy / "templates" / "twin").mkdir()
    shutil.copy(copy / "templates/cpu/grouped_gemm.py.jinja", copy / "templates/twin")
    done = installing.run(copy.parent, USE.format(folder=str(copy.parent)))

    assert done.code == 0, done.err
    assert "_twin" in done.out


def test_a_copy_with_the_old_name_is_refused(tmp_path: Path) -> None:
    """A folder that was copied, and its object not renamed: kernels would have another's name."""
    copy = tmp_path / "jitgen"
    shutil.copytree(ROOT / "jitgen", copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(copy / "targets" / "cpu", copy / "targets" / "twin")
    use = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    use += "from jitgen.cli import main\nsys.exit(main.run(['configs', '--arch', 'twin']))"
    done = installing.run(tmp_path, use)

    assert done.code == 2, done.out
    said = "TARGET of jitgen/targets/twin calls itself 'cpu'; it must have the name of its folder"
    assert said in done.err


def test_the_first_commands_of_the_document_make_a_target(tmp_path: Path) -> None:
    """They used to copy a folder and leave the old name in it, which is refused."""
    copy = tmp_path / "jitgen"
    shutil.copytree(ROOT / "jitgen", copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "docs" / "adding-a-target.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    end = next(i for i, line in enumerate(lines) if line.startswith("jitgen "))
    subprocess.run(["bash", "-ec", "\n".join(lines[:end])], cwd=tmp_path, check=True, timeout=60)
    use = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom jitgen.cli import main\n"
    done = installing.run(
        tmp_path, use + "sys.exit(main.run('configs --arch mine --op combine --all'.split()))"
    )

    assert lines[end] == "jitgen configs --arch $NAME --all"
    assert done.code == 0, done.err
    assert "combine_bf16_mine " in done.out
    assert "E_WEIGHTED" in done.out


def test_the_document_is_linked() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        assert "docs/adding-a-target.md" in (ROOT / name).read_text(encoding="utf-8")


def test_the_entry_points_are_those_of_the_test_package() -> None:
    """What the document shows is what is installed and tested."""
    text = (ROOT / "docs" / "adding-a-target.md").read_text(encoding="utf-8")
    project = (installing.ACME / "pyproject.toml").read_text(encoding="utf-8")
    lines = [line.partition("#")[0].strip() for line in text.split("```")[1].splitlines()[1:]]

    assert lines
    assert [line for line in lines if line and line not in project] == []
