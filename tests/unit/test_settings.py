# SPDX-License-Identifier: Apache-2.0
"""Settings: where a value comes from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site import variables
from jitgen.errors import SettingError
from jitgen.settings import settings
from jitgen.support.values import parse_size
from jitgen.support.variables import TABLE


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program wins over the environment, which wins over the default."""
    assert settings.origin("on_miss") == ("compile", "default")
    monkeypatch.setenv("JITGEN_ON_MISS", "error")
    assert settings.origin("on_miss") == ("error", "environment")
    with settings.scope(on_miss="compile"):
        assert settings.origin("on_miss") == ("compile", "program")
    assert settings.on_miss == "error"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("JITGEN_ON_MISS", "maybe"),
        ("JITGEN_CACHE", "readonly"),
        ("JITGEN_CACHE_SIZE", "4 gallons"),
        ("JITGEN_JOBS", "many"),
        ("JITGEN_JOBS", "-1"),
        *(
            (variable, value)
            for variable in ("JITGEN_LOCK_TIMEOUT", "JITGEN_COMPILE_TIMEOUT", "JITGEN_FAILURE_TTL")
            for value in ("nan", "inf", "-1", "1e999", "1e10", "soon")
        ),
        *(("JITGEN_JOBS", value) for value in ("nan", "inf", "-3", "1e999", "2.5")),
        ("JITGEN_CACHE_DIR", "relative/path"),
    ],
)
def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    """A typo in a variable raises, naming the variable, the value and what is allowed."""
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingError, match=rf"{variable}='{value}' is not allowed: it must be"):
        getattr(settings, variable.removeprefix("JITGEN_").lower())


def test_every_variable_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in a setting that is not read for hours is told at once; unset ones are not."""
    monkeypatch.setenv("JITGEN_CACHE_SIZE", "1GiB")
    monkeypatch.setenv("JITGEN_JOBS", "")
    monkeypatch.delenv("JITGEN_CACHE_DIR")
    monkeypatch.delenv("HOME", raising=False)  # no default for the root, which is not used
    settings.check_environment()
    monkeypatch.setenv("JITGEN_FAILURE_TTL", "nan")

    with pytest.raises(SettingError, match="JITGEN_FAILURE_TTL='nan' is not allowed"):
        settings.check_environment()


def test_an_unknown_setting_is_refused() -> None:
    """A misspelt attribute neither reads nor writes."""
    with pytest.raises(AttributeError, match="no setting 'on_mis'"):
        _ = settings.on_mis
    with pytest.raises(SettingError, match="no setting 'on_mis'"):
        settings.on_mis = "error"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("500", 500), ("4GiB", 4 * 2**30), ("1.5 kb", 1536), ("2m", 2 * 2**20)],
)
def test_sizes(text: str, size: int) -> None:
    """Sizes are in powers of 1024, with or without B."""
    assert parse_size(text) == size


def test_the_cache_never_lies_in_tmp_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default follows XDG_CACHE_HOME when that is absolute, else the home folder."""
    monkeypatch.delenv("JITGEN_CACHE_DIR")
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert settings.cache_dir == Path("/home/u/.cache/jitgen")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert settings.cache_dir == Path("/xdg/jitgen")


def test_the_page_of_settings_is_the_table() -> None:
    """docs/settings.md and code state the same variables, types and defaults."""
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == variables.page(), "python -m docs.site settings"
    for setting in TABLE:
        row = (
            f"| `{setting.variable}` | `settings.{setting.name}` | {setting.kind} "
            f"| {setting.shown_default} | {setting.help} |"
        )

        assert row in page
