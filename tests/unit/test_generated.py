# SPDX-License-Identifier: Apache-2.0
"""Generated files: what their first lines promise, and that they hold nothing for nothing."""

from __future__ import annotations

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from jitgen import templates
from jitgen.cli.main import cli
from jitgen.codegen import render as rendering
from jitgen.codegen.render import render
from jitgen.config import Arch, Config, DType
from jitgen.config.permute_quantize import Walk
from jitgen.errors import RenderError
from jitgen.support.documents import canonical_json
from jitgen.targets.legality import rules, target
from tests.pinned import NAMES, text_of
from tests.strategies import (
    activation_quantize_sweep,
    backward_sweep,
    combine_sweep,
    fc2_sweep,
    legal_sweep,
    lora_sweep,
    permute_sweep,
    prepacked_sweep,
    quantize_sweep,
    route_sweep,
    thin_sweep,
    unpack_sweep,
    unscaled_sweep,
    wgrad_sweep,
)
from tests.targets import EACH
from tests.templates import places

MANY = pytest.mark.parametrize("many", [5, pytest.param(40, marks=pytest.mark.nightly)])
"""Configs of each operation."""


def _sample(arch: Arch, many: int) -> list[Config]:
    sweeps: list[list[Config]] = [
        [*legal_sweep(arch)],
        [each for each in legal_sweep(arch) if each.operands.a_dtype is DType.F16],
        [*unscaled_sweep(arch)],
        [*prepacked_sweep(arch)],
        [*activation_quantize_sweep(arch)],
        [*fc2_sweep(arch)],
        [*wgrad_sweep(arch)],
        [*quantize_sweep(arch)],
        [*route_sweep(arch)],
        [*permute_sweep(arch)],
        [each for each in permute_sweep(arch) if each.walk is Walk.COPY],
        [*combine_sweep(arch)],
        [*backward_sweep(arch)],
        [*unpack_sweep(arch)],
        [*thin_sweep("dispatch")(arch)],
        [*lora_sweep(arch)],
        [*thin_sweep("combine_ranks")(arch)],
        [*thin_sweep("moe_decode")(arch)],
    ]
    return [config for configs in sweeps for config in configs[:: max(1, len(configs) // many)]]


@cache
def _rendered(arch: Arch, many: int) -> list[tuple[Config, str]]:
    return [(config, render(config, arch).text) for config in _sample(arch, many)]


@pytest.mark.sampled(2)
@MANY
@pytest.mark.parametrize("arch", EACH)
def test_a_generated_file_carries_its_config(arch: Arch, many: int) -> None:
    """The JSON in its first lines is the canonical one, and gives the config back."""
    for config, text in _rendered(arch, many):
        document = "".join(re.findall(r"^#     (.*)$", text.split('"""')[0], re.MULTILINE))

        assert document == canonical_json(config.to_json())
        assert Config.from_json(json.loads(document)) == config


@pytest.mark.sampled(2)
@MANY
@pytest.mark.parametrize("arch", EACH)
def test_two_blank_lines_stand_before_a_definition(arch: Arch, many: int) -> None:
    """A line statement of Jinja takes the blank lines behind it: two kernels had none there."""
    close = re.compile(r"^(?![@#]).*\S.*\n\n?(?=@|def |class )", re.MULTILINE)
    for config, text in _rendered(arch, many):
        assert [config.name(arch), *close.findall(text)] == [config.name(arch)]


@pytest.mark.parametrize(
    "document",
    ['{"a":1}\nimport os', '{"a":"b c"}', "{}#", '{"a":"\\n"}', '{"é":1}', "{'a':1}", ""],
)
def test_only_the_json_of_a_config_gets_into_a_source(document: str) -> None:
    """What could end the comment that it is written in is refused."""
    with pytest.raises(RenderError, match="may not be written"):
        rendering._plain("config_json", document)


def test_json_gets_into_a_source_under_its_own_name_only() -> None:
    """Every other value stays a plain word."""
    document = '{"tile":{"k":128},"use_pdl":true}'

    assert rendering._plain("config_json", document) == document
    with pytest.raises(RenderError, match="may not be written"):
        rendering._plain("name", document)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_commands_at_the_top_are_real(name: str) -> None:
    """Every command exists with its options, and names this kernel."""
    documentation = ast.get_docstring(ast.parse(text_of(name))) or ""
    lines = [line.strip() for line in documentation.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("jitgen ")]

    assert f"NAME={name}" in lines
    assert len(commands) >= 2
    for _, word, *arguments in commands:
        command = cli.get_command(click.Context(cli), word)
        assert command is not None
        options = {option for each in command.params for option in each.opts}
        assert set(arguments) - {"$NAME"} <= options
        assert "$NAME" in arguments


@pytest.mark.sampled(2)
@MANY
@pytest.mark.parametrize("arch", EACH)
def test_nothing_is_defined_for_nothing(arch: Arch, many: int) -> None:
    """Constants, classes and functions of a generated file are used in it."""
    for config, text in _rendered(arch, many):
        tree = ast.parse(text)
        nodes = [*ast.walk(tree)]
        used = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        used |= {node.value for node in nodes if isinstance(node, ast.Constant)}
        defined = {
            name.id
            for statement in tree.body
            if isinstance(statement, ast.Assign)
            for name in ast.walk(statement)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }
        defined |= {
            statement.name
            for statement in tree.body
            if isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        }

        assert defined - used == {"arguments", config.op}, config.name(arch)  # the compiler's


@pytest.mark.sampled(2)
@MANY
@pytest.mark.parametrize("arch", EACH)
def test_rendering_reads_no_file_that_the_digest_misses(
    arch: Arch, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found by looking at the templates' text is all that Jinja loads."""
    rendering.environment.cache_clear()
    of_arch = [each for op in target(arch).operations for each in rules(arch, op).templates()]
    loaded: set[str] = set()

    def note(root: Path) -> None:
        loader = rendering.environment(root).loader
        assert loader is not None
        get_source = loader.get_source

        def noted(environment: object, name: str) -> object:
            loaded.add(str(templates.path_of(root, name)))
            return get_source(environment, name)  # type: ignore[arg-type]

        monkeypatch.setattr(loader, "get_source", noted)

    for root in {template.root for template in of_arch}:
        note(root)
    for config in _sample(arch, many):
        render(config, arch)
    rendering.environment.cache_clear()

    every = {str(templates.ROOT / place) for each in of_arch for place in places(each).values()}
    assert {str(templates.path_of(each.root, each.entry)) for each in of_arch} <= loaded
    assert loaded <= every
