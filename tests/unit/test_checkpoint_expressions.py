# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of configs: those of published models match, those without end do not run."""

from __future__ import annotations

from itertools import accumulate

import pytest

from jitgen.layer.checkpoints.expressions import is_match

MODULE = "model.language_model.layers.42.mlp.experts.0.gate_proj"
PATHS = list(accumulate(MODULE.split("."), lambda path, word: f"{path}.{word}"))


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        (".*lm_head", False),
        (r".*\.mlp\.gate$", False),
        (r"model\.language_model\.layers\.(?:[0-9]|[1-5][0-9])\.mlp.*", True),
        ("^(?!.*experts).*$", True),  # a parent of the module
        ("^(?!.*experts).*proj$", False),
        (r".*mlp\.experts\.\d+\.(gate|up|gate_up|down)_proj.*", True),
        (r"(?:.*\.)?layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj", True),
        (rf"model.*layers\.({'|'.join(map(str, range(61)))})\.mlp\.experts.*", True),
        (r"model\.(?P<part>vision|language)_model.*", True),
        (r".*[)\]*+(]x", False),
        (r".*\)*\(*+proj", True),
    ],
)
def test_what_configs_have(expression: str, matches: bool) -> None:
    assert is_match(expression, PATHS) is matches


@pytest.mark.parametrize(
    "expression",
    [
        r"(\w+\.?)+!",
        "(.*)*!",
        r"([\w.]+){2,}!",
        r"(?x)([\w.]+) +!",
        r"(?i-x:a)(?ix:([\w.]+) +!)",
        r"([\w.]+)(?#so)+!",
        r"([\]).]|[\w.]+)+!",
        r"(\)|[\w.]+)+!",
        ".*" * 12 + "!",
        ".?" * 40 + "!",
        "(.?)" * 30 + "!",
        ".*?" * 12 + "!",
        ".{0,}" * 12 + "!",
        "(.|.)" * 40 + "!",
    ],
)
def test_what_may_take_for_ever_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="may take too long"):
        is_match(expression, PATHS)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("(", "no expression"),
        ("a{99999999999999999999}", "no expression"),
        ("(" * 499 + ")" * 499, "no expression"),
        ("a" * 1001, "longer than 1,000"),
    ],
)
def test_what_does_not_compile(expression: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        is_match(expression, PATHS)
