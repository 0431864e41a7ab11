# SPDX-License-Identifier: Apache-2.0
"""Who signed a bundle, whom JITGEN_TRUST trusts, and the commands that say so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jitgen.bundle import image
from jitgen.bundle.export import export
from jitgen.bundle.image import BundleError
from jitgen.bundle.install import install, refusals
from jitgen.cache import Store
from jitgen.errors import SettingError
from jitgen.plans import Plan
from jitgen.settings import settings
from jitgen.signing.keys import PrivateKey
from tests.cli.conftest import Jitgen, jitgen
from tests.unit.bundle_fakes import path, plan, store
from tests.unit.fleet_fakes import CPU
from tests.unit.signing_fakes import trust_of

__all__ = ["jitgen", "path", "plan", "store"]

ROOT, SIGNER, STRANGER = (PrivateKey.generate() for _ in range(3))

pytestmark = pytest.mark.usefixtures("no_power_failure")


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trust document with one key, which JITGEN_TRUST names."""
    file = tmp_path / "trust.json"
    expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    file.write_bytes(trust_of(ROOT, SIGNER, expires=expires).sealed(ROOT))
    monkeypatch.setenv("JITGEN_TRUST", str(file))
    return file


def signed(plan: Plan, store: Store, path: Path, signer: PrivateKey) -> image.Bundle:
    return export([plan], [CPU], path, store, signer=signer, builder="the build")


def test_what_is_signed_is_taken_in_with_its_signatures(
    plan: Plan, store: Store, path: Path, cache_root: Path, trust: Path
) -> None:
    bundle = signed(plan, store, path, SIGNER)
    target = Store.open(cache_root)
    install(bundle, target)

    with settings.scope(verify="always"):
        entries = [target.read(packed.meta.key) for packed in bundle.entries]
        assert refusals(bundle, target) == {}
    assert all(entry is not None and entry.signatures for entry in entries)


def test_a_strangers_is_refused_and_nothing_published(
    plan: Plan, store: Store, path: Path, cache_root: Path, trust: Path
) -> None:
    """One refused kernel among good ones used to be the way to half an import."""
    good, bad = signed(plan, store, path, SIGNER), signed(plan, store, path, STRANGER)
    mixed = image.Bundle(
        digest=good.digest,
        annotations=good.annotations,
        entries=(*good.entries[:-1], bad.entries[-1]),
        layer_bytes=good.layer_bytes,
    )
    target = Store.open(cache_root)
    with pytest.raises(BundleError, match=rf"1 of {len(good.entries)} .* is not in trust document"):
        install(mixed, target)

    assert list(target.entries()) == []


def test_unsigned_ones_are_refused(path: Path, cache_root: Path, trust: Path) -> None:
    with pytest.raises(BundleError, match=r"it is not signed.*JITGEN_VERIFY=off takes"):
        install(image.load(path), Store.open(cache_root))


def test_a_key_must_be_trusted(path: Path, cache_root: Path) -> None:
    with pytest.raises(SettingError, match="JITGEN_TRUST does not say whose signatures count"):
        install(image.load(path), Store.open(cache_root))


def test_signatures_come_to_what_is_there(
    plan: Plan, store: Store, path: Path, cache_root: Path, trust: Path
) -> None:
    target = Store.open(cache_root)
    with settings.scope(verify="off"):
        install(image.load(path), target)
    rows = install(signed(plan, store, path, SIGNER), target)

    assert {row.fate for row in rows} == {"present"}
    with settings.scope(verify="always"):
        assert all(target.read(row.key) is not None for row in rows)


def test_the_commands(
    jitgen: Jitgen, plan: Plan, store: Store, path: Path, tmp_path: Path, trust: Path
) -> None:
    key, made, file = tmp_path / "key.pem", tmp_path / "made.tar", tmp_path / "small.toml"
    SIGNER.save(key)
    with settings.scope(cache_dir=store.root):
        done = jitgen(
            f"bundle export {file} --arch cpu -o {made} --sign {key} --builder us --json"
        ).document
    seen = jitgen(f"bundle inspect {made} --json").document
    checked = jitgen(f"bundle verify {made} --plan {file} --json").document
    read = jitgen(f"bundle verify {made} --plan {file}")
    taken = jitgen(f"bundle import {made} --json").document

    assert (read.out, read.code) == ("", 0), "a table without rows"
    assert seen["digest"] == done["digest"] == checked["digest"] == taken["digest"]
    assert {keyid for row in seen["kernels"] for keyid in row["signed_by"]} == {SIGNER.keyid}
    assert (checked["ok"], checked["refused"], checked["missing"]) == (True, {}, [])
    assert {row["state"] for row in taken["kernels"]} == {"imported"}
    assert jitgen(f"prewarm {file} --arch cpu --check").code == 0


def test_what_the_commands_refuse(jitgen: Jitgen, path: Path, tmp_path: Path, trust: Path) -> None:
    file = tmp_path / "small.toml"
    empty = jitgen(f"bundle export {file} --arch cpu -o {tmp_path}/x.tar --json")
    unsigned = jitgen(f"bundle verify {path} --plan {file} --json")
    with settings.scope(verify="off"):
        incomplete = jitgen(f"bundle verify {path} --plan {file} --plan deepseek-v3")
    nameless = jitgen(f"bundle verify {path}")
    unknown = jitgen(f"bundle verify {path} --plan none")

    assert (empty.code, empty.document["ok"]) == (3, False)
    assert empty.document["missing"]
    assert (unsigned.code, unsigned.document["ok"]) == (1, False)
    assert set(unsigned.document["refused"].values()) == {"it is not signed"}
    assert incomplete.code == 1
    assert "missing  grouped_gemm_masked" in incomplete.out
    assert "compiled with" not in incomplete.err, "by the same toolchain as this one"
    assert (unknown.code, unknown.err.startswith("error: no plan 'none'")) == (2, True)
    assert (nameless.code, "name their files with --plan" in nameless.err) == (2, True)
    assert jitgen(f"bundle import {path}").code == 1
    assert jitgen(f"bundle export {file} -o {tmp_path}/x.tar --builder us").code == 2
