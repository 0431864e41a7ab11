# SPDX-License-Identifier: Apache-2.0
"""Keys: everything that changes an artifact changes the key, and nothing else does."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest

from jitgen import templates
from jitgen.compile import toolchain
from jitgen.config import Arch
from jitgen.config.grouped_gemm import (
    Cluster,
    GroupedGemmConfig,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.runtime import spec
from jitgen.targets.legality import rules, target

CONFIG = GroupedGemmConfig(layout="ragged", tile=Tile(m=64, n=128, k=128))


def test_digest_is_that_of_the_canonical_json() -> None:
    """Anybody can recompute a key from the stored document with a JSON library and SHA-256."""
    document = spec.document(CONFIG, Arch.SM_90A)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))

    assert spec.key(CONFIG, Arch.SM_90A) == hashlib.sha256(text.encode()).hexdigest()


def test_the_document_holds_exactly_the_designed_fields() -> None:
    """A new input needs a decision, and a new schema number."""
    document = spec.document(CONFIG, Arch.SM_90A)

    assert set(document) == {
        "schema",
        "config",
        "arch",
        "derived",
        "templates",
        "rendering",
        "toolchain",
        "options",
        "host",
    }
    assert document["config"] == CONFIG.to_json()
    assert document["options"] == ["--enable-tvm-ffi", "--gpu-arch", "sm_90a"]
    assert "torch" not in json.dumps(document)


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "masked"},
        {"operands": Operands(scale_granularity="row")},
        {"tile": Tile(m=128, n=128, k=128)},
        {"cluster": Cluster(m=2)},
        {"pipeline": Pipeline(num_ab_stage=4)},
        {"schedule": Schedule(raster=1)},
    ],
)
def test_every_config_field_changes_the_key(change: dict[str, Any]) -> None:
    """A different kernel never shares a key."""
    assert spec.key(dataclasses.replace(CONFIG, **change), Arch.SM_90A) != spec.key(
        CONFIG, Arch.SM_90A
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("templates", "0" * 64),
        ("toolchain", {"nvidia-cutlass-dsl": "4.8.2"}),
        ("options", []),
        ("host", "linux-aarch64"),
        ("arch", "cpu"),
        ("schema", 3),
    ],
)
def test_every_document_field_changes_the_key(name: str, value: object) -> None:
    """Another template, compiler, option, host or schema is another key."""
    document = spec.document(CONFIG, Arch.SM_90A)

    assert spec.digest({**document, name: value}) != spec.digest(document)


def test_every_file_of_a_template_is_in_its_digest() -> None:
    """What a template includes is found, so that a change of an included file is a new key."""
    for arch in Arch:
        operations = target(arch).operations
        found = [each for op in operations for each in rules(arch, op).templates()]
        names = {name for template in found for name in templates.files(template)}
        folder = (templates.ROOT / found[0].entry).parent

        assert {template.entry for template in found} <= names
        assert {f"{folder.name}/{path.name}" for path in folder.glob("*.jinja")} <= names


def test_a_key_is_the_same_in_every_process() -> None:
    """Hash seeds and folders do not get into a key."""
    code = (
        "from jitgen import Arch, GroupedGemmConfig; from jitgen.runtime.spec import key;"
        f"print(key(GroupedGemmConfig.parse({CONFIG.name('sm_90a')!r})[0], Arch.SM_90A))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": ":".join(sys.path)},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed, zone, folder in [("1", "UTC", "/"), ("2", "Asia/Tokyo", "/tmp")]
    }

    assert digests == {spec.key(CONFIG, Arch.SM_90A)}


def test_the_host_is_named_without_its_cpu() -> None:
    """
    Entries of one processor family are shared; what they need of the CPU is checked when read.
    """
    assert toolchain.host(Arch.SM_90A).count("-") == 1
