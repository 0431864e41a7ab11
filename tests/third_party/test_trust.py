# SPDX-License-Identifier: Apache-2.0
"""What is loaded of others: nothing unasked, what is asked for under its own key, or one error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Jitgen
from tests.third_party import installing

NAME = "scale_rows_v4_acme_cpu"
KEY = f"""
from jitgen.config import Config
from jitgen.runtime.spec import key
print(key(*Config.parse({NAME!r})))
"""
ALONE = """
import importlib.metadata, sys

def forbidden(*_, **__):
    raise SystemExit("entry points were read")

importlib.metadata.entry_points = forbidden
importlib.metadata.Distribution.entry_points = property(forbidden)
import jitgen
from jitgen.cli import main
from jitgen.config import Arch, Config
from jitgen.config.plugins import OPERATIONS
from jitgen.runtime.spec import key

key(*Config.parse("grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t16x64x128_c1x1_acc1_cpu"))
assert "acme_cpu" not in list(Arch) and "scale_rows" not in OPERATIONS.names()
assert not [name for name in sys.modules if name.startswith("jitgen_acme")]
sys.exit(main.run(["configs", "--arch", "acme_cpu"]))
"""
TARGET = "from jitgen.targets.cpu import Cpu\nclass Other(Cpu):\n    name = {name!r}\n"


class TestKeys:
    def test_version_and_templates_count(self, folder: Path, tmp_path: Path) -> None:
        """Another version, or another byte in a template or what it includes: another key."""
        site = tmp_path / "site"
        shutil.copytree(folder, site)
        keys = [installing.run(site, KEY, plugins="jitgen-acme")]
        record = site / "jitgen_acme-1.0.dist-info"
        text = (record / "METADATA").read_text()
        (record / "METADATA").write_text(text.replace("Version: 1.0", "Version: 1.1"))
        keys.append(installing.run(site, KEY, plugins="jitgen-acme"))
        for name in ("scale_rows.py.jinja", "_arguments.py.jinja"):
            with (site / "jitgen_acme" / "templates" / "acme" / name).open("a") as file:
                file.write("\n")
            keys.append(installing.run(site, KEY, plugins="jitgen-acme"))
        again = installing.run(site, KEY, plugins="Jitgen.Acme")

        assert [done.err for done in keys] == [""] * 4
        assert len({done.out for done in keys}) == 4
        assert again.out == keys[-1].out  # however its name is spelled


class TestUnasked:
    def test_nothing_is_loaded(self, folder: Path) -> None:
        """Nor are entry points read, of whatever is installed, which takes a start 30 ms."""
        done = installing.run(folder, ALONE)

        assert done.code == 2, done.out + done.err
        assert "Error: Invalid value" not in done.out
        assert done.err.splitlines()[-1].endswith(
            "arch 'acme_cpu' is not known; allowed: cpu, sm_100a, sm_103a, sm_120a, sm_121a, sm_90a"
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions."""
    folder = tmp_path / "others"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


class TestBroken:
    """Each has a name of its own: what is installed is looked at once in a process."""

    @pytest.mark.parametrize(
        ("plugin", "value", "module", "said"),
        [
            ("b-import", "b_import:T", "import nothing_here", "ModuleNotFoundError: No module"),
            ("b-raise", "b_raise:T", "1 / 0", "ZeroDivisionError: division by zero"),
            ("b-none", "b_none:T", "", "AttributeError: module 'b_none' has no attribute 'T'"),
            ("b-module", "b_module", "", "b_module is a module, and must be an object as"),
            ("b-class", "b_class:T", "class T: ...", "b_class:T is a class, and must be an object"),
            (
                "b-lacks",
                "b_lacks:T",
                "class C:\n    name = family = ''\n    is_gpu = False\nT = C()",
                "it lacks compiler_options, host_level, devices, operations, runs_on, rules",
            ),
            (
                "b-named",
                "b_named:T",
                TARGET.format(name="elsewhere") + "T = Other()",
                "b_named:T calls itself 'elsewhere'; its entry point must have the same name",
            ),
        ],
    )
    def test_what_cannot_be_used(
        self,
        site: Path,
        jitgen: Jitgen,
        monkeypatch: pytest.MonkeyPatch,
        plugin: str,
        value: str,
        module: str,
        said: str,
    ) -> None:
        name = plugin.replace("-", "_")
        installing.invent(site, plugin, {f"targets:{name}": value}, {name: module})
        monkeypatch.setenv("JITGEN_PLUGINS", plugin)
        done, looked = jitgen("configs --arch", name), jitgen("doctor")

        assert done.code == 2
        assert done.err.count("error: ") == 1
        assert f"arch {name} of {plugin}" in done.err
        assert said in done.err
        assert looked.code == 1
        assert said in looked.out
        assert jitgen("configs --arch cpu --layout masked --dtype f32").code == 0  # others work

    def test_rules(self, site: Path, jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
        module = TARGET.format(name="b_rules") + "    def rules(self, op):\n        return op\n"
        installing.invent(
            site, "b-rules", {"targets:b_rules": "b_rules:T"}, {"b_rules": module + "T = Other()"}
        )
        monkeypatch.setenv("JITGEN_PLUGINS", "b-rules")
        done = jitgen("configs --arch b_rules")

        assert done.code == 2
        assert done.err.startswith(
            "error: what b_rules says of grouped_gemm is no jitgen.targets.protocol.Rules: it "
            "lacks generation, alignment, row_edges, sums, derive,"
        )

    def test_an_operation(
        self, site: Path, jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        installing.invent(site, "b-op", {"ops:b_op": "b_op:O"}, {"b_op": "O = 'b_op'"})
        monkeypatch.setenv("JITGEN_PLUGINS", "b-op")
        done = jitgen("configs --op b_op")

        assert done.code == 2
        assert (
            "operation b_op of b-op: b_op:O is no jitgen.config.operation.Operation: it lacks"
            in (done.err)
        )

    @pytest.mark.parametrize(
        ("plugins", "points", "said"),
        [
            (
                ("t-cpu",),
                "targets:cpu",
                "t-cpu brings cpu to jitgen.targets, and so does jitgen itself",
            ),
            (
                ("t-op",),
                "ops:grouped_gemm",
                "t-op brings grouped_gemm to jitgen.ops, and so does jitgen itself",
            ),
            (
                ("t-one", "t-two"),
                "targets:t_same",
                "t-two brings t_same to jitgen.targets, and so does t-one; leave one out",
            ),
            (("t-bad",), "targets:T-9", "t-bad brings 'T-9' to jitgen.targets: a name becomes"),
        ],
    )
    def test_names(
        self,
        site: Path,
        jitgen: Jitgen,
        monkeypatch: pytest.MonkeyPatch,
        plugins: tuple[str, ...],
        points: str,
        said: str,
    ) -> None:
        for plugin in plugins:
            installing.invent(site, plugin, {points: "nowhere:T"}, {})
        monkeypatch.setenv("JITGEN_PLUGINS", ", ".join(plugins))
        done = jitgen("cache ls")  # told when a command starts, whatever it reads

        assert done.code == 2
        assert said in done.err
        assert jitgen("doctor").code == 1

    def test_not_installed(self, jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JITGEN_PLUGINS", "unknown-targets")
        done = jitgen("cache ls")

        assert done.code == 2
        assert "JITGEN_PLUGINS names 'unknown-targets', which is not installed" in done.err
