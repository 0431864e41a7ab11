# SPDX-License-Identifier: Apache-2.0
"""Kernels from elsewhere in the loader: when they are fetched, and when never."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from jitgen.cache import Entry, Store
from jitgen.compile import compile as compiling
from jitgen.config import Arch, Layout
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.errors import (
    ArtifactError,
    CaptureMiss,
    CompileError,
    KernelMiss,
    ToolchainError,
)
from jitgen.events import EventKind
from jitgen.plans.prewarm import PrewarmState, prewarm
from jitgen.plans.task import compile_task
from jitgen.remote import tiers as elsewhere
from jitgen.runtime import kernel, loader
from jitgen.runtime.loader import KernelLoader
from jitgen.runtime.spec import KernelSpec, spec_of
from jitgen.runtime.tiers import Tiers
from jitgen.settings import settings

from .remote_stand import KEY, THIEF, Stand, signatures_of, standing, told
from .store_fakes import fake_files, fake_meta

CONFIG = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=8, n=32, k=128))
ARCH = Arch.CPU
SPEC = spec_of(CONFIG, ARCH)


def _entry(spec: KernelSpec, *keys: Any, **changes: Any) -> Entry:
    values: dict[str, Any] = {
        "key_document": spec.document,
        "arch": str(spec.arch),
        "config": spec.config.to_json(),
        "name": spec.name,
        "host_isa": (),
    }
    meta = fake_meta(1, **(values | changes))
    bare = Entry.of(meta, fake_files(1))
    return Entry.of(bare.meta, bare.files, signatures_of(bare.meta, *keys))


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    """A host with a bucket, where nothing can be compiled and every library loads."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise CompileError(SPEC.name, "this test compiles nothing")

    monkeypatch.setattr(compiling, "compile_kernel", refuse)
    monkeypatch.setattr(kernel, "load", lambda entry: lambda *_: None)
    with standing(tmp_path) as found, settings.scope(remote=found.url):
        (tmp_path / "bucket").mkdir()
        yield found


@pytest.fixture
def subject(stand: Stand) -> KernelLoader:
    return KernelLoader(stand.store)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that asks a remote backend."""
    monkeypatch.setattr(elsewhere, "backends", lambda _: pytest.fail("nothing is to be fetched"))


def test_missing_kernel_is_fetched_and_kept(stand: Stand, subject: KernelLoader) -> None:
    stand.push(_entry(SPEC, KEY))

    with told(EventKind.FETCH, EventKind.HIT, EventKind.COMPILE) as seen:
        assert subject.get(CONFIG, ARCH).tier == "remote"
    assert [(event.kind, event.tier) for event in seen] == [("fetch", "remote"), ("hit", "remote")]
    assert KernelLoader(stand.store).get(CONFIG, ARCH).tier == "disk"


def test_loaded_kernel_asks_no_backend(stand: Stand, subject: KernelLoader, nowhere: None) -> None:
    entry = _entry(SPEC, KEY)
    stand.store.publish(entry.meta, entry.files)

    assert subject.get(CONFIG, ARCH) is subject.get(CONFIG, ARCH)
    assert subject.find(CONFIG, ARCH) is not None


def test_looking_for_a_neighbour_asks_no_backend(subject: KernelLoader, nowhere: None) -> None:
    assert subject.find(CONFIG, ARCH) is None


def test_capture_asks_no_backend(
    subject: KernelLoader, nowhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "is_capturing", lambda _: True)

    with pytest.raises(CaptureMiss):
        subject.get(CONFIG, ARCH)


def _error(subject: KernelLoader) -> None:
    settings.on_miss = "error"


@pytest.mark.parametrize("forbid", [_error, KernelLoader.freeze])
def test_fetching_is_no_compiling(
    stand: Stand, subject: KernelLoader, forbid: Callable[[KernelLoader], None]
) -> None:
    with settings.scope():
        forbid(subject)
        with pytest.raises(KernelMiss, match=r"; file:.*: not there\), and compiling is off"):
            subject.get(CONFIG, ARCH)

        other = GroupedGemmConfig(layout=Layout.RAGGED, tile=Tile(m=16, n=32, k=128))
        stand.push(_entry(spec_of(other, ARCH), KEY))
        assert subject.get(other, ARCH).tier == "remote"


def test_what_is_refused_is_compiled(stand: Stand, subject: KernelLoader) -> None:
    stand.push(_entry(SPEC, THIEF))

    with told(EventKind.REJECT) as seen, pytest.raises(CompileError, match="compiles nothing"):
        subject.get(CONFIG, ARCH)
    assert len(seen) == 1


def test_library_that_does_not_load_is_compiled(
    stand: Stand, subject: KernelLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(entry: Entry) -> NoReturn:
        raise ArtifactError("no symbol")

    stand.push(_entry(SPEC, KEY))
    monkeypatch.setattr(kernel, "load", broken)

    with told(EventKind.QUARANTINE) as seen, pytest.raises(CompileError):
        subject.get(CONFIG, ARCH)
    assert [event.detail for event in seen] == ["no symbol"]
    assert stand.store.read(SPEC.key) is None


def test_kernel_for_another_cpu_is_compiled(stand: Stand, subject: KernelLoader) -> None:
    stand.push(_entry(SPEC, KEY, host_isa=("x86-64-v99",)))

    with pytest.raises(CompileError):
        subject.get(CONFIG, ARCH)
    assert "x86-64-v99" in str(Tiers(stand.store).fetch(SPEC, may_compile=False))


def test_read_only_root_keeps_it_in_memory(stand: Stand) -> None:
    stand.push(_entry(SPEC, KEY))
    subject = KernelLoader(Store.open(stand.folder / "none", mode="ro"))

    assert subject.get(CONFIG, ARCH).tier == "remote"
    assert subject.tiers.get(SPEC)[1] == "memory"
    assert not (stand.folder / "none").exists()


def test_background_fetches_what_a_neighbour_stands_in_for(
    stand: Stand, subject: KernelLoader
) -> None:
    stand.push(_entry(SPEC, KEY))
    arrived = threading.Event()
    subject._on_arrival = lambda _: arrived.set()

    subject.background.want(CONFIG, ARCH)
    assert arrived.wait(10)
    found = subject.find(CONFIG, ARCH)
    assert found is not None
    assert found.tier == "remote"


@pytest.mark.parametrize("package", ["zstandard", "cryptography"])
def test_missing_package_is_named(
    stand: Stand, subject: KernelLoader, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Not an extra of jitgen, which brings the compiler: some machines only run kernels."""
    stand.push(_entry(SPEC, KEY))
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ToolchainError, match=f"pip install {package}$"):
        subject.get(CONFIG, ARCH)


def test_object_stores_want_their_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)

    with pytest.raises(ToolchainError, match=r"s3://bucket needs .* pip install obstore$"):
        elsewhere._opened("s3://bucket").read("v1", 1)


def test_prewarm_fetches_before_it_compiles(stand: Stand) -> None:
    stand.push(_entry(SPEC, KEY))

    (row,) = prewarm([CONFIG], arch=ARCH, store=stand.store).rows
    assert row.state is PrewarmState.FETCHED
    (row,) = prewarm([CONFIG], arch=ARCH, store=stand.store).rows
    assert row.state is PrewarmState.CACHED


def test_worker_is_given_what_fetching_needs(stand: Stand) -> None:
    task = compile_task(stand.store, CONFIG, ARCH)

    assert task["settings"]["remote"] == [stand.url]
    assert task["settings"]["trust"] == str(stand.folder / "trust.json")
    with settings.scope(**task["settings"]):
        assert settings.remote == (stand.url,)
        assert settings.service == ""


def test_without_places_nothing_of_this_is_imported(tmp_path: Path) -> None:
    """Neither by `import jitgen` nor by a start that finds its kernels."""
    script = tmp_path / "start.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "import jitgen\n"
        "from jitgen.cache import Store\n"
        "from jitgen.runtime.loader import KernelLoader\n"
        "from jitgen.runtime import kernel\n"
        "kernel.load = lambda entry: len\n"
        f"found = KernelLoader(Store.open(Path({str(tmp_path / 'root')!r}))).get({SPEC.name!r})\n"
        "assert found.tier == 'disk', found\n"
        "rooms = ('jitgen.remote', 'jitgen.signing', 'obstore', 'urllib3', 'zstandard',"
        " 'cryptography', 'jitgen.cache.trusted', 'http', 'ssl')\n"
        "print([name for name in sys.modules if name.startswith(rooms)])\n"
    )
    tmp_path.chmod(0o700)
    entry = _entry(SPEC)
    Store.open(tmp_path / "root", mode="rw").publish(entry.meta, entry.files)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
