# SPDX-License-Identifier: Apache-2.0
"""Bytes to native code: what was given is what runs, whatever happens to files meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jitgen.cache import Entry
from jitgen.cache.entry import LIBRARY, Meta, key_of
from jitgen.cache.entry import SOURCE as SOURCE_FILE
from jitgen.errors import ResourceError
from jitgen.runtime import kernel, native

SOURCE = """
#include <stdint.h>
typedef struct {{ int32_t type; uint32_t pad; int64_t value; }} Any;
int __tvm_ffi_answer(void *self, const Any *args, int32_t count, Any *result) {{
    result->type = 1; result->pad = 0; result->value = {answer};
    return 0;
}}
"""
Build = Callable[[int], bytes]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """What returns a shared library whose function returns a number."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("libraries")
    known: dict[int, bytes] = {}

    def library(answer: int) -> bytes:
        if answer not in known:
            (folder / "answer.c").write_text(SOURCE.format(answer=answer), encoding="ascii")
            command = [gcc, "-shared", "-fPIC", "-nostdlib", "-o", "answer.so", "answer.c"]
            subprocess.run(command, cwd=folder, check=True)
            known[answer] = (folder / "answer.so").read_bytes()
        return known[answer]

    return library


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def no_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without files in memory."""

    def refuse(*_: Any) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refuse)


def answer_of(content: bytes, name: str = "kernel") -> int:
    return int(native.load(content, name)["answer"]())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def maps_of(name: str) -> int:
    """Return how often `name` is mapped executable."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return sum(name in line and "r-xp" in line for line in lines)


class TestLoad:
    def test_contents_under_one_name_are_different_modules(self, build: Build) -> None:
        """
        The system's loader knows libraries by path and inode: a name that was loaded before used to
        give the old code back.
        """
        first, second = native.load(build(1), "same"), native.load(build(2), "same")

        assert (first["answer"](), second["answer"]()) == (1, 2)
        assert first["answer"]() == 1

    def test_descriptor_numbers_come_again(self, build: Build) -> None:
        """
        Each load gets the descriptor of the one before, so the path of it used to name a library
        that was known already.
        """
        assert [answer_of(build(number)) for number in range(3, 9)] == list(range(3, 9))

    def test_the_same_content_twice(self, build: Build) -> None:
        """A kernel that two registries load used to share a module that one of them could end."""
        before = maps_of("twice")
        modules = [native.load(build(10), "twice") for _ in range(2)]

        assert [module["answer"]() for module in modules] == [10, 10]
        assert maps_of("twice") == before + 2

    @pytest.mark.parametrize("harm", ["overwritten", "truncated", "removed"])
    def test_the_file_that_the_bytes_came_from(
        self, build: Build, tmp_path: Path, harm: str
    ) -> None:
        """A library that was damaged while it was mapped used to kill the process (SIGBUS)."""
        path = tmp_path / "kernel.so"
        path.write_bytes(build(11))
        module = native.load(path.read_bytes(), "from a file")
        if harm == "overwritten":
            path.write_bytes(b"\xcc" * len(build(11)))
        elif harm == "truncated":
            os.truncate(path, 0)
        else:
            path.unlink()

        assert module["answer"]() == 11
        assert str(path) not in Path("/proc/self/maps").read_text(encoding="utf-8")

    def test_a_module_outlives_what_was_returned(self, build: Build) -> None:
        """Code was unmapped with the last reference to it, while a launch still used it."""
        native.load(build(12), "unreferenced")

        assert maps_of("unreferenced") == 1

    @pytest.mark.parametrize(
        "name",
        ["", "a/b", "../up", "with space\n", "ü" * 10, "日本" * 100, "x" * 300, "%s {} \x1b["],
    )
    def test_names(self, build: Build, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """A name is only shown: a long one used to be refused, with a path in it to be opened."""
        if name.isascii():  # 200 other letters may be too many bytes, and then the copy serves
            monkeypatch.setattr(native, "_load_copy", lambda _: pytest.fail("it was copied"))
        answer_of(build(13))
        before = descriptors()

        assert answer_of(build(13), name) == 13
        assert descriptors() == before

    def test_nothing_is_left(self, build: Build, temporary: Path) -> None:
        """A descriptor for each kernel would end a server after a thousand of them."""
        answer_of(build(14))
        before = descriptors()
        for _ in range(50):
            answer_of(build(14))

        assert descriptors() == before
        assert not list(temporary.iterdir())

    @pytest.mark.parametrize(
        "content",
        [b"no library", bytes(100), b"\x7fELF" + bytes(5000), bytes(range(256)) * 20],
        ids=["text", "zeros", "a magic number", "noise"],
    )
    def test_garbage(self, build: Build, content: bytes) -> None:
        """What is no library was an error of whatever type, and its descriptor stayed open."""
        answer_of(build(15))
        before = descriptors()
        with pytest.raises(ValueError, match="no ELF file"):
            native.load(content, "garbage")

        assert descriptors() == before

    @pytest.mark.parametrize("size", [0, 64, 200, 5000])
    def test_a_part_of_a_library(self, build: Build, tmp_path: Path, size: int) -> None:
        """The beginning of a library, even none of it, kills the process behind a good one."""
        whole, part = tmp_path / "whole", tmp_path / "part"
        whole.write_bytes(build(16))
        part.write_bytes(build(16)[:size])
        code = (
            "import sys; sys.modules['torch'] = None\n"
            "from pathlib import Path; from jitgen.runtime import native\n"
            "for _ in range(3): native.load(Path(sys.argv[1]).read_bytes(), 'whole')\n"
            "try: native.load(Path(sys.argv[2]).read_bytes(), 'part')\n"
            "except ValueError: print('refused')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, whole, part],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.stdout == "refused\n", done.returncode


class TestSealed:
    """A file in memory could still be changed through /proc while its code ran."""

    def test_it_holds_the_bytes(self) -> None:
        content = os.urandom(100_000)
        descriptor = native._sealed(content, "some")
        try:
            assert Path(f"/proc/self/fd/{descriptor}").read_bytes() == content
            assert not os.get_inheritable(descriptor)
        finally:
            os.close(descriptor)

    def test_it_cannot_be_changed(self) -> None:
        """Not even who opens it anew, for writing."""
        descriptor = native._sealed(b"code", "some")
        again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        try:
            for file in (descriptor, again):
                for change in (
                    lambda f=file: os.pwrite(f, b"other", 0),
                    lambda f=file: os.ftruncate(f, 0),
                    lambda f=file: os.ftruncate(f, 100),
                    lambda f=file: fcntl.fcntl(f, native._ADD_SEALS, 0x10),  # seals are sealed too
                ):
                    with pytest.raises(PermissionError):
                        change()
            assert os.pread(again, 100, 0) == b"code"
        finally:
            os.close(again)
            os.close(descriptor)

    def test_an_older_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Kernels before 6.3 refuse the flag that forbids running it as a program."""
        real, asked = os.memfd_create, []

        def create(name: str, flags: int) -> int:
            asked.append(flags)
            if flags & native._NOEXEC_SEAL:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return real(name, flags)

        monkeypatch.setattr(os, "memfd_create", create)
        os.close(native._sealed(b"code", "some"))

        assert len(asked) == 2

    def test_an_end_in_the_middle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No room for the bytes: the descriptor is closed."""

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        before = descriptors()
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            native._sealed(b"code", "some")

        assert descriptors() == before


@pytest.mark.usefixtures("no_memfd")
class TestCopy:
    """Where there are no files in memory, a private copy serves; one used to be left behind."""

    def test_it_serves(self, build: Build, temporary: Path) -> None:
        modules = [native.load(build(number), "copied") for number in (20, 21, 20)]

        assert [module["answer"]() for module in modules] == [20, 21, 20]
        assert not list(temporary.iterdir())

    def test_garbage(self, temporary: Path) -> None:
        with pytest.raises(ValueError, match="no ELF file"):
            native.load(b"no library", "garbage")

        assert not list(temporary.iterdir())

    def test_a_temporary_folder_that_cannot_be_written(self, build: Build, temporary: Path) -> None:
        """The copy lies in memory then."""
        temporary.rmdir()

        assert answer_of(build(22)) == 22


def test_a_system_that_does_not_load_files_in_memory(
    build: Build, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    """Each good entry used to be quarantined, one after the other."""

    def refuse(*_: object) -> None:
        raise OSError("failed to map segment from shared object")

    monkeypatch.setattr(native, "_load_file", refuse)

    assert answer_of(build(24)) == 24
    assert not list(temporary.iterdir())


def test_without_a_way_to_the_descriptor(
    build: Build, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    """Without /proc the path leads nowhere: the copy serves, and no descriptor stays."""
    real = os.stat

    def stat(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if str(path).startswith("/proc/self/fd/"):
            raise FileNotFoundError(path)
        return real(path, *arguments, **more)

    before = descriptors()
    monkeypatch.setattr(os, "stat", stat)
    result = answer_of(build(23))
    monkeypatch.undo()

    assert result == 23
    assert descriptors() == before


class TestOneLoadOfAProcess:
    """`jitgen.runtime.kernel.load`: every session of a process has the same entry's function."""

    def entry(self, content: bytes, name: str) -> Entry:
        document = {"op": "answer", "of": name}
        meta = Meta(
            key=key_of(document),
            key_document=document,
            name=name,
            arch="cpu",
            config={},
            symbol="answer",
            library=LIBRARY,
            files={},
            created="2026-01-01T00:00:00Z",
            compile_s=0.0,
            link_s=0.0,
            host_isa=(),
            jitgen="0",
        )
        return Entry.of(meta, {SOURCE_FILE: b"", LIBRARY: content})

    @pytest.fixture(autouse=True)
    def no_runtime_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernel, "load_runtime_library", lambda: None)
        monkeypatch.setattr(kernel, "_loaded", {}, raising=False)

    def test_many_sessions(self, build: Build) -> None:
        """Each load took three mappings, and nothing gave them back: 65,530 end a process."""
        entries = [self.entry(build(20), "of many sessions") for _ in range(100)]
        functions = [kernel.load(entry) for entry in entries]

        assert {function() for function in functions} == {20}
        assert maps_of("of many sessions") == 1

    def test_threads(self, build: Build) -> None:
        """Those that come at the same time may each load it; all have the same in the end."""
        entry = self.entry(build(21), "of threads")
        with ThreadPoolExecutor(8) as pool:
            functions = list(pool.map(lambda _: kernel.load(entry), range(64)))

        assert {function() for function in functions} == {21}
        assert 1 <= maps_of("of threads") <= 8
        assert kernel.load(entry) is functions[0]

    def test_other_content(self, build: Build) -> None:
        """An edited kernel under the same name is another one."""
        first, second = (self.entry(build(number), "one name") for number in (22, 23))

        assert (kernel.load(first)(), kernel.load(second)()) == (22, 23)
        assert kernel.load(first)() == 22

    def test_the_bytes_are_not_kept(self, build: Build) -> None:
        """They were the key, so that each kernel's library stayed in memory for ever."""
        kernel.load(self.entry(build(26), "let go"))

        assert [key for key in kernel._loaded if any(isinstance(part, bytes) for part in key)] == []

    def test_failures_are_not_remembered(
        self, build: Build, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry = self.entry(build(24), "refused for a moment")
        with monkeypatch.context() as patch:
            patch.setattr(native, "load", raise_error(OSError(errno.ENOMEM, "no memory")))
            with pytest.raises(ResourceError):
                kernel.load(entry)

        assert kernel.load(entry)() == 24


def raise_error(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail
