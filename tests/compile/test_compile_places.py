# SPDX-License-Identifier: Apache-2.0
"""Where a compile happens does not show in what comes out; kernels in doubt are not published."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jitgen
from jitgen.cache import Store
from jitgen.compile import compile as compiling
from jitgen.compile import isolated
from jitgen.config import Arch
from jitgen.plans.prewarm import PrewarmState, prewarm
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.spec import key
from tests.compile.test_loader import CONFIG, check

REPOSITORY = Path(__file__).parents[2]
CPU = CONFIG.name(Arch.CPU)
GPU = "unpack_weights_folded1_k4_sm_90a"  # the one that is compiled soonest
LEFT = 60  # frames that a deep caller leaves; the smallest compile takes a hundred

FRESH = """
import hashlib, json, logging, sys
sys.modules["torch"] = None  # which tvm-ffi imports wherever it can, for two seconds
logging.basicConfig(format="%(message)s")
{before}
from jitgen.cache import Store
from jitgen.config import Config
from jitgen.runtime.tiers import Tiers, build
from jitgen.runtime.spec import spec_of
entry, _ = build(Tiers(Store.open()), spec_of(*Config.parse({name!r})))
print(json.dumps([hashlib.sha256(entry.library).hexdigest(), entry.why_private]))
"""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the library that a clean process publishes."""
    root = tmp_path_factory.mktemp("clean") / "cache"
    digest, why_private, _ = fresh(root)
    assert not why_private
    assert published(root) == [digest]
    return digest


@pytest.fixture(scope="module")
def clean_gpu(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest without variables of a kernel that they change."""
    return fresh(tmp_path_factory.mktemp("clean") / "cache", name=GPU)[0]


def fresh(
    root: Path, before: str = "", *, name: str = CPU, **variables: str
) -> tuple[str, str, str]:
    """
    Build kernel `name` in a new interpreter after `before`; return its digest, why it is private,
    and what was logged.
    """
    done = subprocess.run(
        [sys.executable, "-c", FRESH.format(before=before, name=name)],
        env={
            **os.environ,
            "JITGEN_CACHE_DIR": str(root),
            "PYTHONPATH": str(REPOSITORY),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    digest, why_private = json.loads(done.stdout.splitlines()[-1])
    return digest, why_private, done.stderr


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def published(root: Path) -> list[str]:
    """Return the digests of the libraries that a cache holds, linked or not."""
    return [sha256(path.read_bytes()) for path in root.glob("v1/entries/*/*/kernel.*o")]


def deep(work: Callable[[], Any]) -> Any:
    """Call `work` from where little is left of the stack."""
    depth, frame = 0, sys._getframe().f_back
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return work() if depth > sys.getrecursionlimit() - LEFT else deep(work)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", ["process", "worker", "auto"])
def test_the_place_does_not_show(
    cache_root: Path, clean: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """
    What a process had done before it compiled used to show in the bytes, under the same key.
    """
    where: list[str] = []
    here, there = compiling._compile_here, isolated.compile_isolated

    def compile_here(*arguments: Any, **more: Any) -> Any:
        where.append("here")
        return here(*arguments, **more)

    def compile_isolated(*arguments: Any, **more: Any) -> Any:
        where.append("there")
        return there(*arguments, **more)

    monkeypatch.setattr(compiling, "_compile_here", compile_here)
    monkeypatch.setattr(isolated, "compile_isolated", compile_isolated)
    with jitgen.settings.scope(compile=place):
        kernel = KernelLoader(Store.open(cache_root)).get(CONFIG, "cpu")

    check(kernel)
    assert kernel.tier == "compiled"
    assert sha256(kernel.entry.library) == clean
    # In a process that imported the compiler before this test, auto compiles elsewhere.
    assert (
        where
        in {
            "process": [["here"]],
            "worker": [["there"]],
            "auto": [["here"], ["here", "there"]],
        }[place]
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", ["process", "worker", "auto"])
def test_a_deep_caller(cache_root: Path, clean: str, place: str) -> None:
    """
    The compiler failed with RecursionError, which was remembered for 24 hours as a failure of the
    kernel's; a good entry on the disk could not be parsed, and was set aside.
    """
    first, second = (KernelLoader(Store.open(cache_root)) for _ in range(2))
    with jitgen.settings.scope(compile=place):
        kernel = deep(lambda: first.get(CONFIG, "cpu"))
        again = deep(lambda: second.get(CONFIG, "cpu"))

    check(kernel)
    assert sha256(kernel.entry.library) == clean
    assert not Store.open(cache_root).index.failures()
    assert again.tier == ("compiled" if kernel.entry.why_private else "disk")


class TestNoLinker:
    """
    A linker that failed used to publish the object under the library's key, or a kernel that the
    prewarm called compiled and no call found.
    """

    @pytest.mark.parametrize(
        ("cc", "expected"),
        [("/bin/false", "/bin/false failed: exit status 1"), (None, "no C compiler driver")],
    )
    def test_prewarm(
        self,
        cache_root: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        cc: str | None,
        expected: str,
    ) -> None:
        if cc is None:
            monkeypatch.delenv("CC", raising=False)
            monkeypatch.setenv("PATH", str(tmp_path))
        else:
            monkeypatch.setenv("CC", cc)
        store = Store.open(cache_root)
        report = prewarm([CONFIG], arch="cpu", store=store, jobs=1)
        (row,) = report.rows

        assert not report.ok
        assert row.state is PrewarmState.FAILED
        assert row.bytes == 0
        assert "not kept" in row.error
        assert expected in row.error
        assert len(row.error.splitlines()) == 1
        assert not published(cache_root)
        assert not store.index.failures()

    def test_a_call(
        self,
        cache_root: Path,
        monkeypatch: pytest.MonkeyPatch,
        clean: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """The call is served from the object, and the next process with a linker publishes."""
        with monkeypatch.context() as here:
            here.setenv("CC", "/bin/false")
            kernel = KernelLoader(Store.open(cache_root)).get(CONFIG, "cpu")
        messages = [r.getMessage() for r in caplog.records if r.name.startswith("jitgen")]

        check(kernel)
        assert "cannot be linked" in kernel.entry.why_private
        assert len(messages) == 1
        assert "not kept" in messages[0]
        assert not published(cache_root)
        assert fresh(cache_root)[:2] == (clean, "")
        assert Store.open(cache_root).read(key(CONFIG, Arch.CPU)) is not None


class TestVariablesOfTheCompiler:
    """CUTE_DSL_LINEINFO=1 gave three times as many bytes, published under the same key."""

    @pytest.mark.nightly
    def test_set_before_everything(self, cache_root: Path, clean_gpu: str) -> None:
        """They are hidden from a compiler that jitgen imports."""
        found = fresh(cache_root, name=GPU, CUTE_DSL_LINEINFO="1", CUTE_DSL_OPT_LEVEL="0")

        assert found[:2] == (clean_gpu, "")
        assert published(cache_root) == [clean_gpu]

    @pytest.mark.nightly
    def test_the_compiler_was_imported_before(self, cache_root: Path, clean_gpu: str) -> None:
        """It has read them: the compile goes to a process of its own."""
        found = fresh(cache_root, "import cutlass.cute", name=GPU, CUTE_DSL_LINEINFO="1")

        assert found[:2] == (clean_gpu, "")
        assert published(cache_root) == [clean_gpu]

    def test_and_must_compile_here(self, cache_root: Path, clean_gpu: str) -> None:
        """What comes out is other code, which stays in the process, with a warning."""
        before = "import cutlass.cute"
        digest, why_private, said = fresh(
            cache_root, before, name=GPU, CUTE_DSL_LINEINFO="1", JITGEN_COMPILE="process"
        )

        assert digest != clean_gpu, "the variable changes the code, else this tests nothing"
        assert "imported by other code" in why_private
        assert said.count("are not kept") == 1
        assert not published(cache_root)
