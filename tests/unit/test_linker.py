# SPDX-License-Identifier: Apache-2.0
"""
Linkers that are missing, fail, hang or lie, and the libraries that they leave.

Any failure of the linker used to publish the object under the key of the library, for good; one
that exited with success could publish nothing, half a file, or another kernel.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from jitgen.compile import linker
from jitgen.compile.elf import exported
from jitgen.compile.linker import LinkError, driver, link

SYMBOL = "__tvm_ffi_kernel"
BEGIN = 'while [ "$1" != -o ]; do shift; done; OUT=$2; OBJECT=$3\n'
Script = Callable[[str], Path]


@pytest.fixture(scope="module")
def real() -> str:
    """The real linker."""
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("needs gcc")
    return found


@pytest.fixture(scope="module")
def built(real: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny object, and with a library that is another one's."""
    folder = tmp_path_factory.mktemp("built")
    for name, symbol in (("kernel", SYMBOL), ("foreign", "__tvm_ffi_foreign")):
        text = f"extern int missing(void);\nint {symbol}(void) {{ return missing(); }}\n"
        (folder / f"{name}.c").write_text(text, encoding="ascii")
        subprocess.run([real, "-fPIC", "-c", f"{name}.c"], cwd=folder, check=True)
    subprocess.run(
        [real, "-shared", "-nostdlib", "-o", "foreign.so", "foreign.o"], cwd=folder, check=True
    )
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A folder of this test's own with the object in it."""
    shutil.copytree(built, tmp_path / "build")
    return tmp_path / "build"


@pytest.fixture
def script(tmp_path: Path, real: str, built: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """What makes a shell script the linker; $REAL is the real one, $FOREIGN another library."""
    names = f'REAL="{real}"\nFOREIGN="{built / "foreign.so"}"\n'  # no variable of ours gets there

    def make(text: str) -> Path:
        path = tmp_path / "cc"
        path.write_text(f"#!/bin/sh\n{names}{text}\n", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))
        return path

    return make


def refused(folder: Path) -> str:
    """Link, which must be refused with one line; return that."""
    with pytest.raises(LinkError) as caught:
        link(folder, "kernel.o", SYMBOL)
    text = str(caught.value)
    assert 0 < len(text) < 700
    assert len(text.splitlines()) == 1
    return text


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return False


class TestGood:
    def test_the_real_one(self, folder: Path, real: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CC", real)
        library = link(folder, "kernel.o", SYMBOL)

        assert exported(library) == {SYMBOL}, "what is only referred to is not defined"
        assert library == link(folder, "kernel.o", SYMBOL), "the same bytes each time"

    def test_a_script_around_it(self, folder: Path, script: Script) -> None:
        """Compiler caches and containers put scripts in its place, which may say things."""
        script('echo "a warning" >&2; echo "some output"; exec "$REAL" "$@"')

        assert SYMBOL in exported(link(folder, "kernel.o", SYMBOL))

    @pytest.mark.parametrize("name", ["LD_RUN_PATH", "LDEMULATION", "LIBRARY_PATH"])
    def test_variables_that_change_what_it_makes(
        self, folder: Path, real: str, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        """LD_RUN_PATH stood in the library, which was published under the same key as ever."""
        monkeypatch.setenv("CC", real)
        before = link(folder, "kernel.o", SYMBOL)
        monkeypatch.setenv(name, "/tmp/elsewhere")

        assert link(folder, "kernel.o", SYMBOL) == before

    @pytest.mark.parametrize("kind", ["not executable", "a folder", "missing", "empty"])
    def test_cc_that_is_no_program_is_passed_over(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        """A stale $CC used to be an OSError, or no linker at all where there was one."""
        path = tmp_path / "cc"
        if kind == "not executable":
            path.write_text("#!/bin/sh\n")
        elif kind == "a folder":
            path.mkdir()
        monkeypatch.setenv("CC", "" if kind == "empty" else str(path))

        assert driver() not in (None, str(path))
        assert SYMBOL in exported(link(folder, "kernel.o", SYMBOL))


class TestBad:
    def test_none(self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The message says what to install."""
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))

        assert "no C compiler driver" in refused(folder)

    def test_a_file_that_is_no_program(self, folder: Path, script: Script) -> None:
        script("").write_text("no program, whatever its mode says", encoding="ascii")

        assert "cannot be run: [Errno 8]" in refused(folder)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("echo 'ld: cannot find -lm' >&2; echo more >&2; exit 1", "cc failed: ld: cannot find"),
            ("exit 3", "cc failed: exit status 3"),
            ("kill -9 $$", "cc failed: exit status -9"),
            ("kill -SEGV $$", "cc failed: exit status -11"),
            (r"printf '\n\n  \033[31mred\033[0m\r\nmore' >&2; exit 1", "red"),
            (r"printf 'a\013b\034c\302\205d\342\200\250e' >&2; exit 1", "failed: a"),
            ("head -c 3000 /dev/urandom >&2; exit 1", "cc failed: "),
            (r"printf '\377\376\000' >&2; exit 1", "cc failed: "),
            ("yes | head -c 3000000 >&2; exit 1", "cc failed: y"),
            ("head -c 3000000 /dev/zero | tr '\\0' x >&2; exit 1", "cc failed: xxx"),
        ],
        ids=[
            *("complaint", "silent", "killed", "crashed", "colours", "separators"),
            *("noise", "binary", "many lines", "a long line"),
        ],
    )
    def test_it_fails(self, folder: Path, script: Script, text: str, expected: str) -> None:
        """Pages of complaints, or none, or what is no text at all."""
        script(text)

        assert expected in refused(folder)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("exit 0", "No such file"),
            (': > "$OUT"', "is no ELF file"),
            ('head -c 3000 /dev/urandom > "$OUT"', "is no ELF file"),
            ('"$REAL" -shared -nostdlib -o "$OUT" "$OBJECT"; truncate -s -1 "$OUT"', "is cut off"),
            ('"$REAL" -shared -nostdlib -o "$OUT" "$OBJECT"; truncate -s 50% "$OUT"', "no ELF"),
            ('"$REAL" -shared -nostdlib -o "$OUT" "$OBJECT"; truncate -s 64 "$OUT"', "is no ELF"),
            ('cp "$FOREIGN" "$OUT"', f"does not define {SYMBOL}"),
            ('cp "$OBJECT" "$OUT"', "is no shared library"),
            ('mkfifo "$OUT"', "is no file"),
            ('mkdir "$OUT"', "is no file"),
            ('ln -s "$FOREIGN" "$OUT"', "is no file"),
            ('ln -s /dev/zero "$OUT"', "is no file"),
            ('truncate -s 8G "$OUT"', "too many bytes"),
        ],
        ids=[
            *("nothing", "empty", "noise", "a byte short", "half", "headers", "foreign", "object"),
            *("fifo", "folder", "link", "device", "sparse"),
        ],
    )
    def test_it_lies(self, folder: Path, script: Script, text: str, expected: str) -> None:
        """Exit status 0, and no usable library."""
        text = text.replace("-s 50%", '-s $(($(stat -c %s "$OUT") / 2))')
        script(f"{BEGIN}{text}\nexit 0")
        said = refused(folder)

        assert "left no usable library" in said
        assert expected in said

    @pytest.mark.parametrize(
        "text",
        [
            "sleep 60 & echo $! $$ > pids; sleep 60",
            "trap '' TERM INT HUP; sleep 60 & echo $! $$ > pids; wait",
            "sleep 60 & echo $! > pids; exit 0",  # it keeps standard error open
        ],
        ids=["with a child", "deaf", "left behind"],
    )
    def test_it_hangs(
        self, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        """A linker that hung used to hang the call, and its own processes outlived it."""
        monkeypatch.setattr(linker, "_TIMEOUT_S", 0.3)
        script(text)
        start = time.monotonic()

        assert "did not end within 0.3 s" in refused(folder)
        assert time.monotonic() - start < 10
        pids = [int(pid) for pid in (folder / "pids").read_text().split()]
        while any(map(is_running, pids)) and time.monotonic() - start < 10:
            time.sleep(0.01)
        assert not any(map(is_running, pids))

    def test_an_interrupt_ends_it(
        self, folder: Path, script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C used to leave the linker behind, which runs in a session of its own."""
        script("echo $$ > pids; sleep 60")

        def interrupt(*_: object, **__: object) -> None:
            while not (folder / "pids").exists() or not (folder / "pids").read_text():
                time.sleep(0.01)
            raise KeyboardInterrupt

        monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            link(folder, "kernel.o", SYMBOL)

        assert not is_running(int((folder / "pids").read_text()))


class TestExported:
    """What a linker left is parsed before it is believed; a parser must not be what breaks."""

    def test_mutations(self, built: Path) -> None:
        """Any damage is a ValueError, or does no harm to what is read."""
        library = (built / "foreign.so").read_bytes()
        chance, refusals = random.Random(7), list[str]()
        for _ in range(600):
            broken = bytearray(library)
            for _ in range(chance.choice((1, 2, 8, 64))):
                # Most of a library is code: half of the hits go where its tables are.
                spots = [chance.randrange(len(library)), chance.randrange(64)]
                spots.append(len(library) - 1 - chance.randrange(64 * 12))
                broken[chance.choice(spots)] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            try:
                exported(bytes(broken[: chance.choice((None, None, chance.randrange(9000)))]))
            except ValueError as error:
                refusals.append(str(error))

        assert 100 < len(refusals) < 600
        assert all(len(text.splitlines()) == 1 for text in refusals)

    def test_every_length(self, built: Path) -> None:
        """A library that is cut off anywhere is none."""
        library = (built / "foreign.so").read_bytes()
        for size in range(0, len(library), 7):
            with pytest.raises(ValueError, match="is cut off"):
                exported(library[:size])

    def test_of_another_machine(self, built: Path) -> None:
        """A cross compiler in $CC used to publish what this host cannot load."""
        library = bytearray((built / "foreign.so").read_bytes())
        library[18:20] = (8).to_bytes(2, "little")  # MIPS

        with pytest.raises(ValueError, match=f"no ELF file for {os.uname().machine}"):
            exported(bytes(library))
