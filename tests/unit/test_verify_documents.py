# SPDX-License-Identifier: Apache-2.0
"""`jitgen verify FILE.json`: the example is right, its broken twins are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitgen.errors import ConfigError
from jitgen.verify.documents import verify_document
from jitgen.verify.files import verify_task

EXAMPLE = Path(__file__).parents[2] / "examples" / "devices" / "exchange.json"


def changed(folder: Path, old: str, new: str) -> Path:
    """Return the example with a text of its kernel or of its own replaced."""
    ptx, document = EXAMPLE.with_suffix(".ptx").read_text(), EXAMPLE.read_text()
    assert (old in ptx) != (old in document)
    (folder / "exchange.ptx").write_text(ptx.replace(old, new))
    path = folder / "exchange.json"
    path.write_text(document.replace(old, new))
    return path


def test_the_example_is_right() -> None:
    found = verify_document(EXAMPLE, modes="all", must_reach_all=True)

    assert found.is_right, found.to_json()
    assert (found.name, found.arch) == ("exchange.json", "sm_90a")
    (trial,) = found.trials
    assert str(trial.sizes) == "2 devices, 2 calls, 3 replays"
    assert trial.report is not None
    modes = [run.mode for run in trial.report.runs]
    assert modes[-5:] == ["slow-links", "late-links", "reversed", "late-device-0", "late-device-1"]
    (coverage,) = found.coverage
    assert not coverage.lacking


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("st.release.sys", "st.release.gpu", "race"),
        ("and.b32 %r3, %r2, 1;", "mov.u32 %r3, 0;", "race"),
        ("setp.lt.u32 %p2, %r5, %r2;", "setp.le.u32 %p2, %r5, %r2;", "deadlock"),
        ("int32:128:unknown", "int32:64", "fault"),
    ],
    ids=["released to its own device", "one bank", "waits for too much", "one bank of memory"],
)
def test_a_broken_twin(tmp_path: Path, old: str, new: str, kind: str) -> None:
    found = verify_document(changed(tmp_path, old, new), modes="eager")

    assert not found.is_right
    assert kind in {finding.kind for trial in found.trials for _, finding in trial.findings}


def test_a_wrong_value(tmp_path: Path) -> None:
    found = verify_document(
        changed(tmp_path, "[\n      0, 1, 2", "[\n      9, 1, 2"), modes="eager"
    )

    (trial,) = found.trials
    assert trial.wrong == 2
    assert trial.places == ("out of device 0: 1 wrong", "out of device 1: 1 wrong")


def test_what_is_not_understood(tmp_path: Path) -> None:
    path = changed(tmp_path, '"devices": 2', '"devices": 0')

    with pytest.raises(ConfigError, match=r"exchange\.json: devices: must be a number from 1 to 8"):
        verify_document(path)
    task = {"file": str(path), "library": "", "modes": ["eager"], "time_limit_s": 9.0}
    assert "must be a number" in verify_task({**task, "arch": "", "must_reach_all": False})["error"]
