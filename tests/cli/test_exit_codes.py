# SPDX-License-Identifier: Apache-2.0
"""The exit codes of docs/troubleshooting.md, for files that are missing or malformed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import documents
from tests.cli.conftest import Jitgen

COMMANDS = {
    "plan": "prewarm FILE --check",
    "recording": "plan from-recording FILE",
    "report": "bench choice --from FILE",
    "table": "tune --import FILE",
    "model config": "plan from-config FILE",
    "service config": "serve FILE --check-config",
    "edited source": "run FILE",
    "lock": "prewarm --locked FILE --check",
    "bundle": "bundle verify FILE",
    "key": "trust public FILE",
    "trust document": "trust show --file FILE",
}
"""For each kind of file, a command that reads one; its name is that of the page."""

CHECKED = ("lock", "bundle", "key", "trust document")


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_malformed_file(jitgen: Jitgen, tmp_path: Path, cache_root: Path, kind: str) -> None:
    """1 for a file that is checked before it is trusted, 2 for any other."""
    suffix = ".py" if kind == "edited source" else ".toml" if kind == "plan" else ""
    path = tmp_path / f"malformed{suffix}"
    path.write_text("this = is ( no file of any kind")
    path.chmod(0o600)

    done = jitgen(COMMANDS[kind].replace("FILE", str(path)))

    assert done.code == (1 if kind in CHECKED else 2)
    assert str(path) in done.err + done.out
    assert "Traceback" not in done.err


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_missing_file(jitgen: Jitgen, tmp_path: Path, cache_root: Path, kind: str) -> None:
    suffix = ".py" if kind == "edited source" else ".toml" if kind == "plan" else ""
    done = jitgen(COMMANDS[kind].replace("FILE", str(tmp_path / f"missing{suffix}")))

    assert done.code == 2


def test_the_page_names_every_kind() -> None:
    text = documents.text("docs/troubleshooting.md")
    (failed,) = (line for line in text.splitlines() if line.startswith("| 1 |"))
    (usage,) = (line for line in text.splitlines() if line.startswith("| 2 |"))

    for kind in COMMANDS:
        assert kind in (failed if kind in CHECKED else usage)
