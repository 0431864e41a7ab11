# SPDX-License-Identifier: Apache-2.0
"""The threat model names the tests that prove it; they are there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_proof_is_a_test() -> None:
    text = (HERE.parents[1] / "docs" / "signing.md").read_text(encoding="utf-8")
    threats = text[text.index("## Threats") : text.index("## What signatures do not protect from")]
    tests = "\n".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py"))
    files = set(re.findall(r"(test_\w+\.py)", threats))
    names = set(re.findall(r"\b(test_\w+)\b(?!\.py)", threats)) | set(
        re.findall(r"\b(Test\w+)\b", threats)
    )

    assert len(names) > 10
    assert {name for name in files if not (HERE / name).exists()} == set()
    assert {n for n in names if not re.search(rf"(def|class) {n}\b", tests)} == set()
