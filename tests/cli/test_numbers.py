# SPDX-License-Identifier: Apache-2.0
"""Numbers that are none, in settings and options: one clear error before anything is done."""

from __future__ import annotations

import click
import pytest

from jitgen.cli import main
from tests.cli.conftest import Jitgen
from tests.cli.test_main import ALL, NAME

BAD = ("nan", "inf", "-1", "-inf", "1e999", "")
SIZES = {"--groups", "--m", "--n", "--k"}


def command_at(words: tuple[str, ...]) -> click.Command:
    found: click.Command | None = main.cli
    for word in words:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    assert found is not None
    return found


def numeric_options() -> list[tuple[tuple[str, ...], str]]:
    """Return words and option of every option that takes a number."""
    kinds = (click.types.IntParamType, click.types.FloatParamType)
    return [
        (words, parameter.opts[0])
        for words in ALL
        for parameter in command_at(words).params
        if isinstance(parameter, click.Option) and isinstance(parameter.type, kinds)
    ]


def test_there_are_some() -> None:
    found = {option for _, option in numeric_options()}

    assert found >= SIZES | {"--time-limit", "--jobs", "--limit"}


@pytest.mark.parametrize(("words", "option"), numeric_options(), ids=str)
def test_options(jitgen: Jitgen, words: tuple[str, ...], option: str) -> None:
    """`jitgen tune --time-limit nan` used to end in a traceback, minutes later."""
    for value in BAD:
        assert main.run([*words, option, value]) == 2, value


@pytest.mark.parametrize(("words", "option"), numeric_options(), ids=str)
def test_the_option_is_named(jitgen: Jitgen, words: tuple[str, ...], option: str) -> None:
    done = jitgen(*words, option, "nan")
    (line,) = (line for line in done.err.splitlines() if line.startswith("error: "))

    assert f"'{option}'" in line
    assert "'nan'" in line


@pytest.mark.parametrize("option", sorted(SIZES))
@pytest.mark.parametrize("words", ["select", "tune"])
def test_sizes(jitgen: Jitgen, words: str, option: str) -> None:
    sizes = dict.fromkeys(SIZES, "64") | {option: "-1"}
    done = jitgen(words, "--arch", "cpu", *(f"{name} {size}" for name, size in sizes.items()))

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {option[2:]} must ")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("JITGEN_JOBS", "-3"),
        ("JITGEN_LOCK_TIMEOUT", "nan"),
        ("JITGEN_COMPILE_TIMEOUT", "1e999"),
        ("JITGEN_FAILURE_TTL", "-1"),
        ("JITGEN_CACHE_SIZE", "nan"),
        ("JITGEN_ARCH", "sm_42"),
        ("JITGEN_TRUST_SHARED", "here"),
    ],
)
@pytest.mark.parametrize("words", ["cache dir", "cache ls", "configs --arch cpu", f"show {NAME}"])
def test_settings(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, words: str, variable: str, value: str
) -> None:
    """They used to pass every command that does not read them."""
    monkeypatch.setenv(variable, value)
    done = jitgen(words)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {variable}")
    assert done.err.count("\n") == 1
    assert value in done.err
    assert jitgen(words, "--json").document["error"]["type"] == "SettingError"


@pytest.mark.parametrize("words", ["--help", "--version", "cache --help", "tune -h", "doctor"])
def test_help_comes_with_any_setting(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Who has to mend a setting may read, and ask the doctor, which tells what is wrong."""
    monkeypatch.setenv("JITGEN_JOBS", "-3")
    done = jitgen(words)

    assert done.code == (1 if words == "doctor" else 0)
    assert not done.err.startswith("error")
