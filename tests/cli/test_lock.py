# SPDX-License-Identifier: Apache-2.0
"""`jitgen lock`, and the commands that compare themselves with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.plans import configs
from jitgen.runtime.lock import read
from tests.cli.conftest import Jitgen
from tests.unit.coverage_fakes import GPU, H200, filled, small
from tests.unit.store_fakes import fake_files

pytest.importorskip("zstandard")


@pytest.fixture
def plan_file(tmp_path: Path, cache_root: Path) -> Path:
    """The file of a plan whose kernels for an H200 are in the cache."""
    plan = small(tmp_path)
    filled(Store.open(cache_root), configs(plan, GPU, devices=(H200,)))
    return tmp_path / "small.toml"


@pytest.fixture
def lock(jitgen: Jitgen, plan_file: Path, tmp_path: Path) -> Path:
    """A lock of that plan."""
    path = tmp_path / "jitgen.lock"
    assert jitgen(f"lock {plan_file} --device h200 -o {path}").code == 0
    return path


def test_a_lock_is_written_with_its_digest(jitgen: Jitgen, plan_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "jitgen.lock"
    done = jitgen(f"lock {plan_file} --device h200 -o {path} --json")

    assert done.code == 0
    assert done.document["digest"] == read(path).digest
    assert done.document["devices"] == [H200]
    assert done.document["kernels"] == len(read(path).targets[0].kernels) > 1


def test_a_kernel_that_is_not_compiled_makes_no_lock(
    jitgen: Jitgen, plan_file: Path, tmp_path: Path
) -> None:
    done = jitgen(f"lock {plan_file} --device h20 -o {tmp_path / 'x.lock'}")

    assert done.code == 3
    assert "would compile  grouped_gemm" in done.out
    assert f"with: jitgen prewarm {plan_file} --arch sm_90a --device 'h20'" in done.err
    assert jitgen(f"prewarm {plan_file} --arch sm_90a --device h20 --dry-run").code == 0
    assert not (tmp_path / "x.lock").exists()


def test_a_bundle_and_a_prewarm_of_exactly_the_locked_kernels(
    jitgen: Jitgen, lock: Path, plan_file: Path, tmp_path: Path
) -> None:
    found = read(lock).targets[0].kernels
    bundle = jitgen(f"bundle export --locked {lock} -o {tmp_path / 'x.tar'} --json")
    assert bundle.code == 0
    assert {each["key"] for each in bundle.document["kernels"]} == {each.key for each in found}
    prewarm = jitgen(f"prewarm {plan_file} --locked {lock} --check --json")
    assert prewarm.code == 0
    assert {each["key"] for each in prewarm.document["kernels"]} == {each.key for each in found}
    assert prewarm.document["devices"] == {"sm_90a": [H200]}


def test_a_missing_kernel_is_what_prewarm_would_compile(
    jitgen: Jitgen, lock: Path, cache_root: Path, tmp_path: Path
) -> None:
    gone = read(lock).targets[0].kernels[0]
    Store.open(cache_root).remove(gone.key)

    done = jitgen(f"prewarm --locked {lock} --check")
    assert done.code == 3
    assert f"would compile  {gone.name}" in done.out
    done = jitgen(f"bundle export --locked {lock} -o {tmp_path / 'x.tar'}")
    assert done.code == 1
    assert f"{gone.name} of " in done.err
    assert f"cannot be found; run: jitgen prewarm --locked {lock}" in done.err
    assert not (tmp_path / "x.tar").exists()


def test_other_bytes_are_no_locked_kernel(jitgen: Jitgen, lock: Path, cache_root: Path) -> None:
    kernel, store = read(lock).targets[0].kernels[0], Store.open(cache_root)
    entry = store.read(kernel.key)
    assert entry is not None
    store.remove(kernel.key)
    store.publish(entry.meta, {**entry.files, "kernel.so": fake_files(77)["kernel.so"]})
    done = jitgen(f"prewarm --locked {lock} --check")

    assert done.code == 1
    assert f"failed  {kernel.name}" in done.out
    assert f"{kernel.name} has another kernel.so" in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("prewarm --locked {} --arch sm_90a", "targets, devices and kernels from the lock alone"),
        ("bundle export --locked {} --device h20 -o x.tar", "from the lock alone"),
        ("bundle export -o x.tar", "name a plan"),
        ("prewarm --locked no.lock", "there is no file 'no.lock'; jitgen lock makes one"),
        ("prewarm gpt-oss --locked {}", "the lock is not for the plan gpt-oss: it has small"),
        ("lock no-plan", "no plan 'no-plan'"),
    ],
)
def test_wrong_uses_are_one_line(jitgen: Jitgen, lock: Path, words: str, says: str) -> None:
    done = jitgen(words.format(lock))

    assert done.code in (1, 2)
    assert says in done.err.splitlines()[-1]
