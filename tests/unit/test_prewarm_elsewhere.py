# SPDX-License-Identifier: Apache-2.0
"""A prewarm and its dry run where a remote cache or a service is set: they say what is so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from jitgen.cache import Entry, Store
from jitgen.compile import workers
from jitgen.compile.workers import Outcome, OutcomeKind
from jitgen.plans.prewarm import prewarm
from jitgen.runtime.spec import KernelSpec, spec_of
from jitgen.settings import settings
from tests.cli.conftest import Jitgen, jitgen
from tests.unit.fleet_fakes import CPU, configs, record
from tests.unit.remote_stand import KEY, THIEF, Stand, signatures_of
from tests.unit.store_fakes import fake_files

__all__ = ["jitgen"]

THERE, FORGED, NOWHERE = (spec_of(config, CPU) for config in configs(3))


def entry_of(spec: KernelSpec, key: Any) -> Entry:
    """Return an entry of a kernel that nothing compiled, signed by a key."""
    bare = Entry.of(record(spec), fake_files(1))
    return Entry.of(bare.meta, bare.files, signatures_of(bare.meta, key))


@pytest.fixture
def remote(stand: Stand) -> Iterator[Stand]:
    """A remote cache with one kernel that counts, and one that a stranger signed."""
    stand.push(entry_of(THERE, KEY))
    stand.push(entry_of(FORGED, THIEF))
    with settings.scope(remote=stand.url):
        yield stand


def words(*specs: KernelSpec) -> str:
    return " ".join(f"--config {spec.name}" for spec in specs)


@pytest.mark.parametrize("how", ["--check", "--dry-run"])
def test_what_a_remote_has_would_be_fetched(jitgen: Jitgen, remote: Stand, how: str) -> None:
    """It used to say that all would be compiled, wherever they were."""
    done = jitgen(f"prewarm {words(THERE, FORGED, NOWHERE)} {how} --json")
    states = {row["name"]: row["state"] for row in done.document["kernels"]}

    assert states == {
        THERE.name: "would_fetch",
        FORGED.name: "would_compile",
        NOWHERE.name: "would_compile",
    }
    assert done.document["counts"]["would_fetch"] == 1
    assert done.code == (3 if how == "--check" else 0)
    assert list(Store.open().entries()) == [], "nothing is stored"


def test_a_check_is_good_if_all_would_be_fetched(jitgen: Jitgen, remote: Stand) -> None:
    done = jitgen(f"prewarm {words(THERE)} --check")

    assert done.code == 0
    assert f"would fetch  {THERE.name}" in done.out
    assert "1 kernel: 1 would fetch" in done.err
    assert jitgen(f"prewarm {words(THERE)}").code == 0
    assert f"cached  {THERE.name}" in jitgen(f"prewarm {words(THERE)} --check").out


def test_documents_without_a_remote_are_as_before(jitgen: Jitgen) -> None:
    counts = jitgen(f"prewarm {words(NOWHERE)} --check --json").document["counts"]

    assert counts == {"cached": 0, "fetched": 0, "compiled": 0, "failed": 0, "would_compile": 1}


def test_a_missing_kernel_is_asked_of_the_service_first(jitgen: Jitgen) -> None:
    with settings.scope(service="http://127.0.0.1:9", verify="off"):
        done = jitgen(f"prewarm {words(NOWHERE)} --check")

    assert done.code == 3
    assert "http://127.0.0.1:9 is asked to compile what is missing before this host" in done.err


@pytest.mark.parametrize(
    ("tier", "state"), [("compiled", "compiled"), ("service", "fetched"), ("disk", "cached")]
)
def test_only_what_was_compiled_here_is_said_to_be(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, tier: str, state: str
) -> None:
    """What a service compiled was "compiled by 1 process", which had only asked for it."""

    def run(_: str, tasks: Sequence[Any], **__: object) -> Iterator[Outcome]:
        Store.open().publish(record(NOWHERE), fake_files(1))
        result = {"key": NOWHERE.key, "tier": tier, "why_private": ""}
        yield Outcome(task=tasks[0], index=0, kind=OutcomeKind.OK, seconds=2.0, result=result)

    monkeypatch.setattr(workers, "run", run)
    done = jitgen(f"prewarm {words(NOWHERE)}")

    assert f"1 {state}" in done.err
    assert ("by 1 process" in done.err) is (tier == "compiled")
    assert prewarm([NOWHERE.config], arch="cpu").ok
