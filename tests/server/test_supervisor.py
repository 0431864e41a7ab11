# SPDX-License-Identifier: Apache-2.0
"""What a service and the supervisor of a toolchain must agree on, in whatever versions."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from jitgen.server.pools import IMPORT_SUPERVISOR
from jitgen.server.questions import Question
from jitgen.server.supervisor import ANSWERS


def test_every_question_has_an_answer() -> None:
    assert ANSWERS.keys() == set(Question)


def test_the_words_of_the_protocol_stay() -> None:
    """An environment of another version knows them by these words."""
    assert {str(question) for question in Question} == {"examine", "expand"}


def test_the_supervisor_of_an_older_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    older = ModuleType("jitgen.server.foreman")
    monkeypatch.setitem(sys.modules, "jitgen.server.supervisor", None)
    monkeypatch.delattr("jitgen.server.supervisor")
    monkeypatch.delattr("jitgen.server.foreman", raising=False)  # a test may have imported it
    monkeypatch.setitem(sys.modules, "jitgen.server.foreman", older)
    names: dict[str, Any] = {}

    exec(IMPORT_SUPERVISOR, names)  # noqa: S102

    assert names["supervisor"] is older
