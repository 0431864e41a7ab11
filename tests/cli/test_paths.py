# SPDX-License-Identifier: Apache-2.0
"""Files that people name: whatever is wrong with one is said before anything is done."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from jitgen.cli.paths import ToRead, ToWrite
from tests.cli.conftest import Jitgen
from tests.cli.test_main import ALL
from tests.cli.test_numbers import command_at

NAME = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t32x64x128_c1x1_acc1_cpu"
WRITTEN = {"--output", "-o", "--export", "--save", "--report"}
"""Options whose value is a file that a command writes."""


def options(kind: type[click.ParamType]) -> list[tuple[tuple[str, ...], str]]:
    """Return words and option of every option of a kind of path."""
    return [
        (words, parameter.opts[0])
        for words in ALL
        for parameter in command_at(words).params
        if isinstance(parameter, click.Option) and isinstance(parameter.type, kind)
    ]


def test_every_output_is_looked_at() -> None:
    named = {
        (words, parameter.opts[0])
        for words in ALL
        for parameter in command_at(words).params
        if isinstance(parameter, click.Option) and WRITTEN & {*parameter.opts}
    }

    assert len(named) > 10
    assert named <= {*options(ToWrite)}


@pytest.mark.parametrize(("words", "option"), options(ToWrite), ids=str)
def test_a_folder_that_is_not_there(
    jitgen: Jitgen, tmp_path: Path, words: tuple[str, ...], option: str
) -> None:
    """Some commands used to work for minutes, and to exit with 1 and "Could not open file"."""
    folder = tmp_path / "absent"
    done = jitgen(*words, option, f"{folder}/file")

    assert done.code == 2
    assert f"'{option}'" in done.err
    assert f"there is no folder {folder} to write file to; make it first: mkdir -p" in done.err
    assert not folder.exists()


@pytest.mark.parametrize(("words", "option"), options(ToRead), ids=str)
def test_a_file_that_is_not_there(
    jitgen: Jitgen, tmp_path: Path, words: tuple[str, ...], option: str
) -> None:
    done = jitgen(*words, option, f"{tmp_path}/absent")

    assert done.code == 2
    assert f"there is no file '{tmp_path}/absent'" in done.err


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("", "'' names no file"),
        ("folder", "is a directory"),
        ("file/page.html", "there is no folder file to write page.html to; it is a file"),
        ("closed/page.html", "the folder closed may not be written to by you"),
    ],
)
def test_a_place_that_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, complaint: str
) -> None:
    """An empty name used to stand for the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "closed").mkdir(mode=0o500)
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path))  # root may
    with pytest.raises(click.BadParameter, match=complaint):
        ToWrite().convert(value, None, None)


def test_standard_output_needs_no_folder() -> None:
    assert ToWrite(allow_dash=True).convert("-", None, None) == Path("-")


def test_a_problem_beyond_any_machine(jitgen: Jitgen) -> None:
    """A list of so many groups used to be made until memory ran out."""
    done = jitgen(f"bench kernel {NAME} --problem 99999999999:1:1:1")

    assert done.code == 2
    assert "a size has at most 7 digits" in done.err
