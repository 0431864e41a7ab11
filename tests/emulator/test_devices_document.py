# SPDX-License-Identifier: Apache-2.0
"""JSON in, verdict out: calls on several devices that a document describes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from jitgen.emulator import document as module
from jitgen.emulator.__main__ import main
from jitgen.emulator.document import KEYS, read_document
from jitgen.errors import InputError
from tests.emulator.devices import kernel
from tests.emulator.test_devices_bulk import PARAMS as BULK_PARAMS
from tests.emulator.test_devices_bulk import READ as FIRST_ROW
from tests.emulator.test_devices_bulk import SECOND_ROW, TAKE, TENSOR_SEND
from tests.emulator.test_devices_exhibits import EXCHANGE, PARAMS, WORDS

DOCUMENT: dict[str, Any] = {
    "devices": 2,
    "kernels": {"exchange": {"ptx": kernel(EXCHANGE, "exchange", PARAMS)}},
    "windows": {"inbox": f"int32:{2 * WORDS}:unknown", "flag": "int32:1"},
    "tensors": {"mine": f"int32:{WORDS}", "state": "int32:1", "out": f"int32:{WORDS}"},
    "values": {"mine": [[1000 * device + i for i in range(WORDS)] for device in range(2)]},
    "calls": [
        {
            "kernel": "exchange",
            "block": [32],
            "arguments": [
                "mine", "inbox", {"window": "inbox", "of": "+1"}, "flag",
                {"window": "flag", "of": "+1"}, "state", "out",
            ],
        }
    ],
    "replays": 3,
    "expected": {
        "out": [[1000 * (1 - device) + i + 3 for i in range(WORDS)] for device in range(2)]
    },
}  # fmt: skip


def written(folder: Path, content: Any = DOCUMENT) -> Path:
    path = folder / "devices.json"
    path.write_text(json.dumps(content))
    return path


def with_ptx(old: str, new: str) -> dict[str, Any]:
    found = copy.deepcopy(DOCUMENT)
    text = found["kernels"]["exchange"]["ptx"]
    assert old in text
    found["kernels"]["exchange"]["ptx"] = text.replace(old, new)
    return found


def test_a_right_protocol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(written(tmp_path)), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["right"]
    assert verdict["wrong"] == {"out of device 0": 0, "out of device 1": 0}
    modes = [run["mode"] for run in verdict["report"]["runs"]]
    assert modes == ["eager", "deferred", "random-3", "slow-links", "late-links", "reversed"]
    assert not verdict["report"]["schedules"]["proved"]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("st.release.sys", "st.release.gpu", "race: read of global memory"),
        ("add.u32 %r4, %r4, %r2", "add.u32 %r4, %r4, 1", "out of device 0: 32 wrong values"),
        ("[%rd11], %r4", "[%rd11+65536], %r4", "fault: global memory"),
    ],
)
def test_mistakes(
    old: str, new: str, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, with_ptx(old, new))
    assert main([str(path), "--modes", "eager"]) == 1
    assert found in capsys.readouterr().out
    assert main([str(path), "--modes", "eager", "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["right"]


def test_kernels_in_files_tables_and_structures(tmp_path: Path) -> None:
    """The peers' addresses come in a table, in a structure, or one by one."""
    body = (
        "ld.param.b64 %rd1, [table];\nld.param.b32 %r1, [device];\nld.param.b32 %r2, [devices];\n"
        "add.u32 %r3, %r1, 1;\nrem.u32 %r3, %r3, %r2;\nmul.wide.u32 %rd2, %r3, 8;\n"
        "add.u64 %rd1, %rd1, %rd2;\nld.global.b64 %rd3, [%rd1];\n"
        "ld.param.b64 %rd4, [all];\nst.relaxed.sys.global.b32 [%rd3], 7;\n"
        "st.relaxed.sys.global.b32 [%rd4+4], 8;\n"
    )
    params = [".u64 table", ".align 8 .b8 all[24]", ".u32 device", ".u32 devices"]
    (tmp_path / "kernel.ptx").write_text(kernel(body, "write", params))
    document = {
        "devices": 3,
        "kernels": {"write": {"file": "kernel.ptx", "entry": "write"}},
        "windows": {"box": "int32:2"},
        "calls": [
            {
                "kernel": "write",
                "arguments": [{"table": "box"}, {"addresses": "box"}, "@device", "@devices"],
            }
        ],
        "expected": {"box": [[7, 8], [7, 0], [7, 0]]},
    }
    verdict = read_document(written(tmp_path, document)).run("eager")
    assert verdict.is_right, verdict


def test_streams_of_a_document(tmp_path: Path) -> None:
    """A call of another stream that reads what the first one wrote, with and without waiting."""
    body = (
        "ld.param.b64 %rd1, [from];\nld.param.b64 %rd2, [to];\nld.global.b32 %r1, [%rd1];\n"
        "add.u32 %r1, %r1, 1;\nst.global.b32 [%rd2], %r1;\n"
    )
    add: dict[str, Any] = {"kernel": "add", "arguments": ["a", "b"]}
    other = {"kernel": "add", "stream": 1, "after": [0], "arguments": ["b", "c"]}
    document = {
        "devices": 2,
        "kernels": {"add": {"ptx": kernel(body, "add", [".u64 from", ".u64 to"])}},
        "tensors": dict.fromkeys("abc", "int32:1"),
        "calls": [add, other],
        "expected": {"c": [2]},
    }
    verdict = read_document(written(tmp_path, document)).run()
    assert verdict.is_right, verdict
    document["calls"] = [add, {**other, "after": []}]
    assert "race: " in str(read_document(written(tmp_path, document)).run("eager"))
    document["calls"] = [{**add, "devices": [0]}, other]
    with pytest.raises(InputError, match=r"after: must be earlier calls of the device \(got 0\)"):
        read_document(written(tmp_path, document))


def test_tensor_maps_of_peers(tmp_path: Path) -> None:
    to_peer = {"window": "inbox", "of": 1}
    described = {
        "tensor_map": to_peer,
        "type": "u32",
        "sizes": [32, 2],
        "strides": [128],
        "box": [32, 1],
    }
    own = {**described, "tensor_map": "inbox"}
    document = {
        "devices": 2,
        "kernels": {
            "send": {"ptx": kernel(TENSOR_SEND, "send", [*BULK_PARAMS, ".u32 value"])},
            "take": {
                "ptx": kernel(
                    TAKE.replace(FIRST_ROW, SECOND_ROW),
                    "take",
                    [*BULK_PARAMS, ".u64 out", ".u32 number"],
                )
            },
        },
        "windows": {"inbox": "int32:64", "flag": "int32:1"},
        "tensors": {"out": "int32:32"},
        "calls": [
            {
                "kernel": "send", "devices": [0], "block": [32],
                "arguments": [to_peer, {"window": "flag", "of": 1}, described, 5],
            },
            {
                "kernel": "take", "devices": [1], "block": [32],
                "arguments": ["inbox", "flag", own, "out", 1],
            },
        ],
        "expected": {"out": [[0] * 32, [5 + i for i in range(32)]]},
    }  # fmt: skip
    verdict = read_document(written(tmp_path, document)).run()
    assert verdict.is_right, verdict


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"devices": 9}, "devices: must be a number from 1 to 8"),
        ({"devices": True}, "devices: must be a number from 1 to 8"),
        ({"device": 2}, "device: is not known in the document"),
        ({"values": {"lost": [1]}}, "lost: is not known in values"),
        ({"windows": {"inbox": "int33:4"}}, "must have a type of int32"),
        ({"expected": {"in": [1]}}, "in: is no tensor or window"),
        ({"expected": {"out": [1]}}, "expected out: must be 32 numbers"),
        ({"calls": [{"kernel": "other"}]}, "kernel: must be one of exchange"),
        ({"calls": [{"kernel": "exchange", "arguments": [True]}]}, "argument true: must be"),
        ({"calls": [{"kernel": "exchange", "grid": [0]}]}, "must be 1 to 3 numbers from 1 on"),
        ({"calls": []}, "calls: must be one at least"),
        (
            {"calls": [{"kernel": "exchange", "arguments": [{"window": "mine"}]}]},
            "mine: is no window",
        ),
        ({"kernels": []}, "is not understood"),
    ],
)  # fmt: skip
def test_what_is_not_understood(
    change: dict[str, Any], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {**DOCUMENT, **change})
    assert main([str(path)]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["late-device-2", "lost-device-2", "lost-device-9-from-1"])
def test_a_mode_of_a_device_that_is_not_there(mode: str, tmp_path: Path) -> None:
    """It ran as if all devices were on time, and was right."""
    with pytest.raises(InputError, match=f"modes: '{mode}' is about one of 2 devices, 0 to 1"):
        read_document(written(tmp_path)).run(mode)


def test_no_json(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    path.write_text("{")
    with pytest.raises(InputError, match=r"devices\.json: is no JSON"):
        read_document(path)


def test_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(written(tmp_path)), "--modes", "eager"]) == 0

    assert "exchange (sm_90a): clean" in capsys.readouterr().out


def test_every_key_is_described() -> None:
    page = Path(module.__file__).parents[2] / "docs" / "emulator-devices.md"
    if not page.exists():
        pytest.skip("the emulator stands alone")
    text = page.read_text("utf-8")
    assert [key for key in sorted(KEYS) if f"`{key}`" not in text] == []


def test_a_document_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 10)
    with pytest.raises(InputError, match=r"devices\.json: is larger than 10 bytes"):
        read_document(written(tmp_path))
