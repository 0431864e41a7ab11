# SPDX-License-Identifier: Apache-2.0
"""An upgrade: one service compiles for two toolchains, each in a virtual environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from jitgen.compile import toolchain
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.remote import wire
from jitgen.runtime.spec import digest, spec_of
from jitgen.support.documents import canonical_json
from tests.service.running import Running, order
from tests.service.test_trouble import until

pytestmark = pytest.mark.service

CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=8, n=64, k=128))
NEW = "9.9.0"


def environment(folder: Path) -> Path:
    """
    Return the interpreter of a virtual environment that finds what this one has, but for the
    version of one part of the toolchain.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    release = packages / f"apache_tvm_ffi-{NEW}.dist-info"
    release.mkdir()
    (release / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: apache-tvm-ffi\nVersion: {NEW}\n\n"
    )
    home = Path(__file__).resolve().parents[2]
    theirs = sysconfig.get_paths()["purelib"]
    (packages / "rest.pth").write_text(f"{home}\nimport site; site.addsitedir({str(theirs)!r})\n")
    return folder / "bin/python"


def test_clients_of_both_are_served(tmp_path: Path) -> None:
    """The request's toolchain picks the environment; a third is told what there is."""
    new = environment(tmp_path / "new")
    service = Running(
        tmp_path / "service",
        {
            "toolchains": [
                {"name": "old", "jobs": 1},
                {"name": "new", "python": str(new), "jobs": 1},
            ]
        },
    )
    versions = {**toolchain.versions(), "apache-tvm-ffi": NEW}
    document = spec_of(CONFIG, Arch.CPU).document | {"toolchain": versions}
    theirs = order(CONFIG) | {"toolchain": versions, "key": digest(document)}
    wait = {"Prefer": "wait=100"}
    done = subprocess.run(
        [sys.executable, "-m", "jitgen", "serve", str(service.config), "--check-config"],
        capture_output=True,
        text=True,
        check=False,
    )
    service.start()
    try:
        until(lambda: len([e for e in service.events() if e["event"] == "pool ready"]) == 2)
        old = service.compile(CONFIG)
        answer = service.request("POST", "/v1/compile", json=theirs, headers=wait)
        third = theirs | {"toolchain": versions | {"apache-tvm-ffi": "0"}}
        refused = service.request("POST", "/v1/compile", json=third).json()
    finally:
        service.stop()

    assert (done.returncode, done.stdout) == (0, f"{service.config} is right\n")
    assert (old.status, answer.status) == (200, 200), answer.data
    packed = wire.unpack(answer.data, theirs["key"])
    assert canonical_json(packed.meta.key_document) == canonical_json(document)
    assert wire.unpack(old.data, order(CONFIG)["key"]).meta.key != packed.meta.key
    assert set(refused["toolchains"]) == {"old", "new"}
    assert [row["field"] for row in refused["differs"]] == ["apache-tvm-ffi"]
