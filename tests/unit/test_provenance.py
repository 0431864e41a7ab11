# SPDX-License-Identifier: Apache-2.0
"""
Who built an artifact, and when no other process gets it.

A patched compiler of the same version, and a process that had changed the compiler's
settings, used to publish other code under the same key.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.compile import compile as compiling
from jitgen.compile import compiler, provenance
from jitgen.compile.compiler import Artifact
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig, Tile
from jitgen.runtime import tiers
from jitgen.runtime.spec import spec_of
from jitgen.runtime.tiers import Tiers
from tests.unit.store_fakes import tree

CONFIGS = [
    GroupedGemmConfig(layout="ragged", tile=Tile(m=rows, n=64, k=128)) for rows in (8, 16, 32)
]


class Known(dict[str, str]):
    """A memory of digests."""

    def digest(self, fingerprint: str) -> str | None:
        return self.get(fingerprint)

    def remember(self, fingerprint: str, digest: str) -> None:
        self[fingerprint] = digest


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, ...]:
    """What stands for the files of a compiler."""
    return installed(tmp_path / "first")


def installed(folder: Path) -> tuple[Path, ...]:
    folder.mkdir(parents=True)
    for name, content in (("api.py", b"VERSION = 4\n"), ("libgen.so", b"\x7fELF" + bytes(1000))):
        (folder / name).write_bytes(content)
    return tuple(sorted(folder.iterdir()))


def digest(files: tuple[Path, ...], memory: Known | None = None) -> str:
    return provenance._digest(files, Known() if memory is None else memory)


class TestDigest:
    @pytest.mark.parametrize("name", ["api.py", "libgen.so"])
    def test_a_change_of_content(self, files: tuple[Path, ...], name: str) -> None:
        """One byte of it, with the version and the size as they were."""
        before = digest(files)
        path = next(path for path in files if path.name == name)
        content = bytearray(path.read_bytes())
        content[-2] ^= 1
        path.write_bytes(content)

        assert digest(files) != before

    def test_names_count_and_paths_do_not(self, files: tuple[Path, ...], tmp_path: Path) -> None:
        """Two hosts with one compiler, installed elsewhere, would not have shared a cache."""
        same = installed(tmp_path / "another place" / "of another host")
        other = installed(tmp_path / "third")
        renamed = (other[0].rename(other[0].with_name("apj.py")), other[1])

        assert digest(same) == digest(files)
        assert digest(renamed) != digest(files)
        assert digest(files[:1]) != digest(files)

    def test_contents_do_not_run_together(self, tmp_path: Path) -> None:
        """A byte that moves from one file to the next is another compiler."""
        one, other = installed(tmp_path / "one"), installed(tmp_path / "other")
        one[0].write_bytes(b"ab")
        one[1].write_bytes(b"c")
        other[0].write_bytes(b"a")
        other[1].write_bytes(b"bc")

        assert digest(one) != digest(other)

    def test_it_is_read_once(
        self, files: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Reading 230 MB for each kernel would take longer than to link it."""
        memory = Known()
        first = digest(files, memory)
        monkeypatch.setattr(provenance, "_read", lambda _: pytest.fail("it was read again"))

        assert digest(files, memory) == first
        assert list(memory.values()) == [first]

    def test_times_can_be_set_back(self, files: tuple[Path, ...]) -> None:
        """A package manager gives a file its old size and time; the ctime cannot be set."""
        memory = Known()
        before, path = digest(files, memory), files[0]
        facts = path.stat()
        time.sleep(0.02)  # older kernels count ctime in ticks
        path.write_bytes(b"VERSION = 5\n")
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

        assert path.stat().st_mtime_ns == facts.st_mtime_ns
        assert digest(files, memory) != before
        assert len(memory) == 2

    def test_another_file_in_its_place(self, files: tuple[Path, ...], tmp_path: Path) -> None:
        """A rename changes the inode only, where the times were copied along."""
        memory = Known()
        before = digest(files, memory)
        draft = tmp_path / "draft"
        draft.write_bytes(b"VERSION = 6\n")
        draft.rename(files[0])

        assert digest(files, memory) != before

    @pytest.mark.parametrize("kind", ["missing", "a folder", "a loop"])
    def test_files_that_cannot_be_read(self, files: tuple[Path, ...], kind: str) -> None:
        """
        What could not be read for lack of descriptors gave a digest of its own, which was then
        believed until the files changed.
        """
        memory = Known()
        files[0].unlink()
        if kind == "a folder":
            files[0].mkdir()
        elif kind == "a loop":
            files[0].symlink_to(files[0])

        with pytest.raises(OSError, match=files[0].name):
            digest(files, memory)
        assert not memory

    def test_the_parts(self, files: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        """Compiler and linker are told apart, and the same memory serves both."""
        monkeypatch.setattr(provenance, "compiler_files", lambda: files)
        monkeypatch.setattr(provenance, "_linker_files", lambda _: files[:1])
        memory = Known()
        found = provenance.builder(memory)

        assert found == {"compiler": digest(files), "linker": digest(files[:1])}
        assert len(memory) == 2


class TestLinker:
    """What the driver says of its linker is not to be trusted."""

    @pytest.fixture
    def found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
        """What finds the files of a driver that is a script, by name."""
        programs = tmp_path / "programs"
        programs.mkdir()
        ld = programs / "ld"
        ld.write_text("#!/bin/sh\n")
        ld.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("LD", str(ld))
        monkeypatch.setattr(provenance, "_TIMEOUT_S", 0.3)

        def find(text: str) -> list[str]:
            driver = tmp_path / "driver"
            driver.write_text(f"#!/bin/sh\n{text}\n")
            driver.chmod(0o755)
            return [path.name for path in provenance._linker_files.__wrapped__(str(driver))]

        return find

    @pytest.mark.parametrize("text", ["echo ld", 'echo "$LD"', 'echo "$LD"; exit 1'])
    def test_it_is_found(self, found: Callable[[str], list[str]], text: str) -> None:
        """By a path, or by a name: another linker behind the same driver is another builder."""
        assert found(text) == ["driver", "ld"]

    @pytest.mark.parametrize(
        "text",
        [
            *("printf '\\377\\000\\n'", "yes | head -c 100000"),
            *("echo /none/such/ld", "exit 1"),
        ],
    )
    def test_nonsense(self, found: Callable[[str], list[str]], text: str) -> None:
        """A driver that answers with what is no path counts for itself."""
        assert found(text)[0] == "driver"

    @pytest.mark.parametrize("text", ["exec sleep 60", "kill -9 $$"])
    def test_one_that_cannot_be_asked_now(
        self, found: Callable[[str], list[str]], text: str
    ) -> None:
        """
        What was guessed instead used to become the builder of these versions, for everybody: no
        other process could publish any more.
        """
        with pytest.raises(OSError, match="driver"):
            found(text)

    def test_no_process_to_ask_it(
        self, found: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr(subprocess, "run", refuse)
        with pytest.raises(BlockingIOError):
            found("echo ld")

    def test_none(self) -> None:
        """Without a driver there is nothing to take a digest of, and no error either."""
        assert provenance._linker_files(None) == ()
        assert digest(()) == digest(())

    def test_a_driver_that_is_gone(self, tmp_path: Path) -> None:
        """It was uninstalled since it was looked for."""
        found = provenance._linker_files.__wrapped__(str(tmp_path / "gone"))

        assert "gone" not in [path.name for path in found]


class TestUnfit:
    """A process whose compiler generates other code than everybody else's."""

    @pytest.fixture
    def told(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """What the compiler, which this module imported, is told now."""
        now: dict[str, Any] = {"lineinfo": False, "opt_level": 3}
        monkeypatch.setitem(sys.modules, "cutlass", ModuleType("cutlass"))
        monkeypatch.setattr(compiler, "_settings_at_import", dict(now))
        monkeypatch.setattr(compiler, "_compiler_settings", lambda: dict(now))
        return now

    def test_nothing_is_wrong(self, told: dict[str, Any]) -> None:
        assert compiler.unfit() == ""

    def test_no_compiler_yet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has no settings, and nothing is imported to find out."""
        monkeypatch.delitem(sys.modules, "cutlass", raising=False)
        monkeypatch.setattr(compiler, "_settings_at_import", None)

        assert compiler.unfit() == ""
        assert "cutlass" not in sys.modules

    def test_another_module_imported_it(
        self, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Under CUTE_DSL_LINEINFO=1 that gave three times as many bytes, under the same key."""
        monkeypatch.setattr(compiler, "_settings_at_import", None)

        assert "imported by other code" in compiler.unfit()

    def test_settings_were_changed(self, told: dict[str, Any]) -> None:
        told |= {"opt_level": 0, "lineinfo": True}

        assert compiler.unfit() == "settings of the compiler were changed: lineinfo, opt_level"

    def test_settings_came_and_went(self, told: dict[str, Any]) -> None:
        """One that was not there before counts as well, and so does one that is gone."""
        told["keep_ir"] = None
        del told["opt_level"]
        told["dump"] = 1

        assert compiler.unfit().endswith(": dump, opt_level")


class TestPublishing:
    REASON = "the compiler was imported by \x1b[31mother"

    def artifact(self, number: int, why_private: str) -> Artifact:
        name = CONFIGS[number].name(Arch.CPU)
        return Artifact(
            symbol=name,
            files={"kernel.py": b"# source\n", "kernel.so": b"\x7fELF" + bytes([number])},
            library="kernel.so",
            compile_s=0.1,
            link_s=0.01,
            why_private=why_private,
        )

    @pytest.fixture(autouse=True)
    def built(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(provenance, "builder", lambda _: {"compiler": "0", "linker": "1"})

    def test_a_doubt_keeps_it_private(
        self, cache_root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It serves this process, with one warning for all of its kernels."""
        store = Store.open(cache_root)
        with caplog.at_level(logging.WARNING):
            found = [
                tiers._publish(
                    Tiers(store), spec_of(config, Arch.CPU), self.artifact(number, self.REASON)
                )
                for number, config in enumerate(CONFIGS)
            ]

        assert [entry.library[-1] for entry in found] == [0, 1, 2]
        assert {entry.why_private for entry in found} == {self.REASON}
        assert {entry.directory for entry in found} == {None}
        assert not [name for name in tree(cache_root) if "kernel." in name or "meta.json" in name]
        (message,) = caplog.messages
        assert "not kept" in message
        assert message.isprintable(), message
        assert all(store.read(entry.key) is None for entry in found)

    def test_another_doubt_is_another_warning(
        self, cache_root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = Store.open(cache_root)
        with caplog.at_level(logging.WARNING):
            for number, doubt in enumerate(["one", "other", "one"]):
                tiers._publish(
                    Tiers(store), spec_of(CONFIGS[number], Arch.CPU), self.artifact(number, doubt)
                )

        assert len(caplog.messages) == 2

    def test_without_a_doubt(self, cache_root: Path) -> None:
        """The same artifact, believed, is published with its builder."""
        store = Store.open(cache_root)
        entry = tiers._publish(Tiers(store), spec_of(CONFIGS[0], Arch.CPU), self.artifact(0, ""))
        found = store.read(entry.key)

        assert entry.why_private == ""
        assert found is not None
        assert found.meta.builder == {"compiler": "0", "linker": "1"}

    def test_a_build_in_doubt_is_built_again_by_the_next(
        self, cache_root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing of a doubtful build is remembered, neither as an entry nor as a failure."""
        doubts = ["settings were changed", ""]
        monkeypatch.setattr(
            compiling, "compile_kernel", lambda *_, **__: self.artifact(0, doubts.pop(0))
        )
        store = Store.open(cache_root)
        first, _ = tiers.build(Tiers(store), spec_of(CONFIGS[0], Arch.CPU))
        second, _ = tiers.build(Tiers(store), spec_of(CONFIGS[0], Arch.CPU))

        assert (first.why_private, second.why_private) == ("settings were changed", "")
        assert not store.index.failures()
        assert tiers.build(Tiers(store), spec_of(CONFIGS[0], Arch.CPU))[0].key == first.key
        assert doubts == []
