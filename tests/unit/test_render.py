# SPDX-License-Identifier: Apache-2.0
"""Templates: parse unrendered, declare what they use, render every legal config to clean Python."""

from __future__ import annotations

import ast
import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jinja2 import meta

from jitgen import templates
from jitgen.codegen import render as rendering
from jitgen.codegen.parameters import read
from jitgen.codegen.render import render
from jitgen.config import Arch, Config
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.errors import RenderError, UnsupportedConfig
from jitgen.targets.legality import rules
from tests.strategies import (
    activation_quantize_sweep,
    combine_sweep,
    fc2_sweep,
    legal_sweep,
    permute_sweep,
    quantize_sweep,
    route_sweep,
    unpack_sweep,
    wgrad_sweep,
)
from tests.targets import EACH
from tests.templates import TEMPLATES

CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=128, k=128))


@pytest.mark.parametrize(
    "path", sorted(templates.ROOT.rglob("*.py.jinja")), ids=lambda path: path.name
)
def test_a_template_is_python_before_it_is_rendered(path: Path) -> None:
    """Editors and linters read templates, so no identifier is ever interpolated."""
    ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", TEMPLATES)
def test_declared_parameters_are_the_used_ones(family: str) -> None:
    """A parameter that no template reads would change keys for nothing; one undeclared is a bug."""
    template, used = TEMPLATES[family], set()
    for name in templates.files(template):
        text = templates.path_of(template.root, name).read_text(encoding="utf-8")
        used |= meta.find_undeclared_variables(rendering.environment(template.root).parse(text))

    assert used == read(template)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("least", [20, pytest.param(2000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("arch", EACH)
def test_legal_configs_render(arch: Arch, least: int) -> None:
    """At least so many configs, spread over a broad sweep, render to Python."""
    configs = legal_sweep(arch)
    step = len(configs) // least
    chosen = configs[:: max(1, step - (step % 2 == 0))]  # prime to the sweep's inner loops
    for config in chosen:
        text = render(config, arch).text

        assert text.endswith("\n")
        assert not text.endswith("\n\n")

    assert len(chosen) >= min(least, len(configs))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", [30, pytest.param(5, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("arch", EACH)
def test_generated_sources_are_formatted(arch: Arch, step: int, tmp_path: Path) -> None:
    """A spread sample passes the formatter and the linter as it is."""
    configs = legal_sweep(arch)
    others = (
        *itertools.islice(activation_quantize_sweep(arch), 0, None, step),
        *itertools.islice(quantize_sweep(arch), 0, None, step),
        *itertools.islice(unpack_sweep(arch), 0, None, step),
        *itertools.islice(fc2_sweep(arch), 0, None, step),
        *itertools.islice(route_sweep(arch), 0, None, step),
        *itertools.islice(permute_sweep(arch), 0, None, step + 2),
        *itertools.islice(combine_sweep(arch), 0, None, step),
        *itertools.islice(wgrad_sweep(arch), 0, None, 2 * step),
    )
    for config in (*configs[:: len(configs) * step // 120], *others):
        source = render(config, arch)
        short = source.text.replace(f"# {source.name}\n", "# NAME\n", 1)  # else too long a line
        (tmp_path / f"{source.name}.py").write_text(short, encoding="utf-8")
    ruff = shutil.which("ruff") or str(Path(sys.executable).with_name("ruff"))
    for command in (
        ["format", "--check", "--diff", "--line-length=100"],
        ["check", "--isolated", "--select=E,F,I,W", "--line-length=100"],
    ):
        done = subprocess.run(
            [ruff, *command, "--no-cache", tmp_path], capture_output=True, text=True, check=False
        )

        assert done.returncode == 0, done.stdout + done.stderr


def test_rendering_is_deterministic() -> None:
    """The same config gives the same text."""
    rendering.environment.cache_clear()
    first = render(CONFIG, "sm_90a").text
    rendering.environment.cache_clear()

    assert render(CONFIG, "sm_90a").text == first


def test_an_illegal_config_is_refused() -> None:
    """Nothing is rendered that the target cannot run."""
    with pytest.raises(UnsupportedConfig, match="E_WGMMA_N"):
        render(GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=256, k=128)), "sm_90a")


def test_an_undefined_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A template that uses what it did not declare fails with its place, instead of rendering nothing.
    """
    template = TEMPLATES["sm_90a sm90/grouped_gemm.py.jinja"]
    fewer = template._replace(parameters=read(template) - {"tile_m"})
    monkeypatch.setattr(type(rules("sm_90a", "grouped_gemm")), "templates", lambda _: (fewer,))

    with pytest.raises(RenderError, match=r"sm90/.*jinja:\d+: 'tile_m' is undefined") as raised:
        render(CONFIG, "sm_90a")

    name, line, _ = str(raised.value).split(":", 2)
    assert (
        "tile_m" in (templates.ROOT / name).read_text(encoding="utf-8").split("\n")[int(line) - 1]
    )


def test_an_error_behind_an_include_has_its_line(tmp_path: Path) -> None:
    """Comments that name partials are added to what is rendered, and are not counted."""
    folder = tmp_path / "cpu"
    folder.mkdir()
    entry = (templates.ROOT / "cpu/combine.py.jinja").read_text(encoding="utf-8").rstrip("\n")
    (folder / "combine.py.jinja").write_text(f"{entry}\n{{{{ nothing }}}}\n", encoding="utf-8")
    line = entry.count("\n") + 2

    with pytest.raises(RenderError, match=rf"combine\.py\.jinja:{line}: 'nothing' is undefined"):
        render(*Config.parse("combine_bf16_cpu"), root=tmp_path)


@pytest.mark.parametrize("value", ["a b", "x;import os", 1.5, None, "", "é"])
def test_only_plain_values_get_into_a_source(value: object) -> None:
    """Rendered text is code that runs, so nothing else may be written into it."""
    with pytest.raises(RenderError, match="may not be written"):
        rendering._plain("name", value)
