# SPDX-License-Identifier: Apache-2.0
"""The schema of JSON output: of every command, in good form, and what commands really print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from docs.site.commands import commands
from jitgen.cli import main
from jitgen.cli.schemas import DOCUMENTS, schema_of
from tests import schemas

jsonschema = pytest.importorskip("jsonschema", reason="needs jitgen[dev]")

NAME = "grouped_gemm_masked_e4m3_e4m3_block128_bf16_t64x16x128_c1x1_acc1_sm_90a"
LIGHT = [
    ["cache", "dir"],
    ["cache", "ls"],
    ["cache", "ls", "--failures"],
    ["cache", "stats"],
    ["cache", "verify"],
    ["cache", "prune"],
    ["cache", "clear", "--yes"],
    ["cache", "quarantine"],
    ["cache", "explain", NAME],
    ["configs", "--op", "combine", "--all"],
    ["select", "-g", "8", "-m", "64", "-n", "512", "-k", "512"],
    ["select", "--op", "route", "-m", "64", "--set", "experts=256", "--set", "top_k=8"],
    ["show", NAME],
    ["show", NAME, "--source"],
    ["show", NAME, "--key"],
    ["diff", NAME, NAME, "--no-compile"],
    ["prewarm", "route", "--dry-run"],
    ["plan", "ls"],
    ["plan", "show", "route"],
    ["doctor"],
    ["schema"],
    ["schema", "cache", "ls"],
    ["bench", "hopper-fp4", "--kernels"],
    ["tune", "--space", "-g", "8", "-m", "64", "-n", "512", "-k", "512", "--dry-run"],
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main.run(words)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_every_command_has_one() -> None:
    assert {" ".join(path) for path, _ in commands()} == set(DOCUMENTS)


@pytest.mark.parametrize("command", DOCUMENTS)
def test_they_are_schemas(command: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of([command]))
    jsonschema.Draft202012Validator.check_schema(schemas.closed(schema_of([command])))


@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_what_is_printed(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """By the command's schema as people get it; `tests/conftest.py` allows nothing besides."""
    document = run(capsys, *words, "--json")
    command = document["command"]

    assert command.split() == words[: len(command.split())]
    jsonschema.validate(document, run(capsys, "schema", *command.split()))
    assert schemas.mistakes(command, document) == []


def test_errors(capsys: pytest.CaptureFixture[str]) -> None:
    document = run(capsys, "show", "unknown", "--json")

    assert document["command"] == "error"
    jsonschema.validate(document, run(capsys, "schema", "show"))
    jsonschema.validate(document, run(capsys, "schema"))


@pytest.mark.parametrize(
    "change",
    [
        {"exists": "yes"},
        {"schema": 2},
        {"command": "cache ls"},
        {"root": None},
        {"more": 1},
    ],
    ids=str,
)
def test_other_documents_are_refused(
    capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    """A field more is for later versions: only the tests of this one refuse it."""
    document = run(capsys, "cache", "dir", "--json") | change
    is_valid = jsonschema.Draft202012Validator(schema_of(["cache dir"])).is_valid(document)

    assert is_valid is ("more" in change)
    assert not jsonschema.Draft202012Validator(schemas.closed(schema_of(["cache dir"]))).is_valid(
        document
    )


def test_a_group_and_all(capsys: pytest.CaptureFixture[str]) -> None:
    group = run(capsys, "schema", "trust", "--json")

    assert group["commands"] == [name for name in DOCUMENTS if name.startswith("trust ")]
    assert run(capsys, "schema", "--json")["commands"] == list(DOCUMENTS)


def test_no_such_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["schema", "cache", "lst"]) == 2
    assert "there is no command 'cache lst'" in capsys.readouterr().err
