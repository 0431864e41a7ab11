# SPDX-License-Identifier: Apache-2.0
"""
Mistakes in settings are told by the first session, not by the first miss in production; and a path
that cannot be breaks no call.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jitgen.cache import Store
from jitgen.config import Arch
from jitgen.config.grouped_gemm import GroupedGemmConfig
from jitgen.errors import JitgenError, KernelMiss, SettingError
from jitgen.plans import recorder
from jitgen.runtime.kernel import Kernel
from jitgen.runtime.session import Session
from jitgen.runtime.spec import key
from jitgen.settings import nearest, settings
from jitgen.support.variables import OTHERS, TABLE
from tests.chaos.kernels import CONFIGS, fill, prebuilt
from tests.unit.store_fakes import folder_of

REPOSITORY = Path(__file__).parents[2]
REMOTE = "file:///srv/kernels"


@pytest.fixture
def warm(cache_root: Path) -> Store:
    """A cache with a kernel, as a server in production has one: nothing is missed."""
    prebuilt()
    return fill(cache_root, 1)


def first() -> Kernel:
    """Return the kernel that the first session of a process serves."""
    return Session().get_kernel(CONFIGS[0], Arch.CPU)


class TestFirstSession:
    @pytest.mark.parametrize(
        "variables",
        [
            {"JITGEN_SERVICE": "ftp://kernels"},
            {"JITGEN_LOCK_TIMEOUT": "soon"},
            {"JITGEN_COMPILE_TIMEOUT": "nan"},
            {"JITGEN_FAILURE_TTL": "-1"},
            {"JITGEN_CACHE_SIZE": "4 gallons"},
            {"JITGEN_ON_MISS": "eror"},
            {"JITGEN_RECORD": "/"},
            {"JITGEN_RECORD": "calls.json"},
            {"JITGEN_RECORD": "/usr"},
            {"JITGEN_TRUST": "/"},
            {"JITGEN_TOKEN_FILE": "/"},
            {"JITGEN_ARCH": "sm_999"},
            {"JITGEN_DEVICE": "NVIDIA Z1"},
            {"JITGEN_PLUGINS": "no-such-distribution"},
            {"JITGEN_OVERRIDE": "/no/such/folder"},
            {"JITGEN_TRUST": "", "JITGEN_REMOTE": REMOTE},
            {"JITGEN_TRUST": "", "JITGEN_SERVICE": "https://kernels"},
            {"JITGEN_TRUST": "", "JITGEN_VERIFY": "always"},
            {
                "JITGEN_TOKEN_FILE": "/no/such/token",
                "JITGEN_SERVICE": "https://kernels",
                "JITGEN_VERIFY": "off",
            },
            {"JITGEN_TOKEN_FILE": "/usr", "JITGEN_SERVICE": "https://x", "JITGEN_VERIFY": "off"},
        ],
        ids=str,
    )
    def test_it_tells_each_mistake(
        self, warm: Store, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
    ) -> None:
        """All of these used to run fine until the first kernel was missed, or for ever."""
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for _ in range(2):
            with pytest.raises(SettingError) as caught:
                first()
            assert next(iter(variables)) in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1

        for name in variables:
            monkeypatch.delenv(name)
        assert first().tier == "disk", "it is put right without a new process"

    def test_all_in_one_error(self, warm: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """A user who mended one had to start anew to hear of the next."""
        monkeypatch.setenv("JITGEN_ON_MISS", "eror")
        monkeypatch.setenv("JITGEN_LOCK_TIMEOUT", "soon")
        with pytest.raises(SettingError) as caught:
            first()

        assert "JITGEN_ON_MISS='eror' is not allowed: it must be compile or" in str(caught.value)
        assert "; JITGEN_LOCK_TIMEOUT='soon' is not allowed" in str(caught.value)

    def test_what_is_right_is_no_mistake(
        self, warm: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "token").write_text("secret")
        (tmp_path / "edited").mkdir(mode=0o700)
        monkeypatch.setenv("JITGEN_ARCH", "cpu")
        monkeypatch.setenv("JITGEN_DEVICE", "h200")
        monkeypatch.setenv("JITGEN_OVERRIDE", str(tmp_path / "edited"))
        monkeypatch.setenv("JITGEN_SERVICE", "https://kernels")
        monkeypatch.setenv("JITGEN_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("JITGEN_VERIFY", "off")

        assert first().tier == "disk"

    @pytest.mark.parametrize("kind", ["pipe", "written by others"])
    def test_a_file_is_opened_as_it_will_be_read(
        self, warm: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        """A pipe kept the first session waiting for ever; an unsafe file was told by a fetch."""
        token = tmp_path / "token"
        if kind == "pipe":
            os.mkfifo(token, 0o600)
        else:
            token.write_text("secret")
            token.chmod(0o666)
        monkeypatch.setenv("JITGEN_TOKEN_FILE", str(token))
        monkeypatch.setenv("JITGEN_SERVICE", "https://kernels")
        monkeypatch.setenv("JITGEN_VERIFY", "off")
        says = "no regular file" if kind == "pipe" else "can be written by other users"

        with pytest.raises(SettingError, match=f"JITGEN_TOKEN_FILE={token} is not used: .*{says}"):
            first()

    def test_a_trust_document_may_come_later(
        self, warm: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Until it does, nothing is fetched and kernels are compiled here."""
        monkeypatch.setenv("JITGEN_REMOTE", REMOTE)
        monkeypatch.setenv("JITGEN_TRUST", "/no/such/trust.json")
        for _ in range(2):
            assert first().tier == "disk"

        assert caplog.text.count("JITGEN_TRUST=/no/such/trust.json cannot be read") == 1

    @pytest.mark.parametrize("verify", ["remote", "off"])
    def test_a_trust_document_that_nothing_needs_yet(
        self,
        warm: Store,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        verify: str,
    ) -> None:
        """Without a remote cache a wrong path was told by nothing until there was one."""
        monkeypatch.setenv("JITGEN_VERIFY", verify)
        monkeypatch.setenv("JITGEN_TRUST", f"/no/such/{verify}.json")
        assert first().tier == "disk"

        told = caplog.text.count(f"JITGEN_TRUST=/no/such/{verify}.json cannot be read")
        assert told == (verify != "off")

    def test_a_base_that_is_not_there_is_told(
        self,
        warm: Store,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Where the own root has everything, it is not looked at until an image changes."""
        monkeypatch.setenv("JITGEN_BASE", f"{tmp_path}/missing:{tmp_path}")
        for _ in range(2):
            assert first().tier == "disk"

        told = f"not reading JITGEN_BASE {tmp_path}/missing: there is no such folder"
        assert [record.getMessage() for record in caplog.records] == [told]

    def test_importing_reads_no_environment(self) -> None:
        code = "import jitgen, jitgen.settings; jitgen.Session; print('fine')"
        environment = {**os.environ, "JITGEN_ON_MISS": "eror", "JITGEN_ON_MIS": "error"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )

        assert (done.stdout, done.stderr) == ("fine\n", "")


class TestUnknownNames:
    def test_they_are_told_once_with_the_nearest(
        self, warm: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """``JITGEN_ON_MIS=error`` was never noticed: production went on compiling."""
        monkeypatch.setenv("JITGEN_ON_MIS", "error")
        monkeypatch.setenv("JITGEN_QWERTY", "1")
        for name in OTHERS:
            monkeypatch.setenv(name, "1")
        for _ in range(2):
            first()

        assert sorted(record.getMessage() for record in caplog.records) == [
            "JITGEN_ON_MIS is not known and ignored; did you mean JITGEN_ON_MISS?",
            "JITGEN_QWERTY is not known and ignored",
        ]

    @pytest.mark.parametrize("name", [setting.variable for setting in TABLE])
    def test_a_letter_that_is_missing(self, name: str) -> None:
        assert nearest(name[:-1]) == f"; did you mean {name}?"

    def test_every_name_that_the_project_reads_is_known(self) -> None:
        """Variables of tests, examples and CI are no mistakes of users'."""
        known = {*(setting.variable for setting in TABLE), *OTHERS, "JITGEN_"}
        found: set[str] = set()
        for folder in ("jitgen", "cache", "tests/gpu", "tests/chaos", "examples", ".ci"):
            for path in (REPOSITORY / folder).rglob("*"):
                if path.is_file() and path.suffix in ("", ".py", ".yaml", ".sh", ".toml"):
                    text = path.read_text(encoding="utf-8", errors="replace")
                    found |= set(re.findall(r"\bJITGEN_[A-Z_0-9]+", text))

        assert found - known == set()


def refused(session: Session) -> str:
    """Return why a session cannot be opened; empty where it can."""
    try:
        _ = session.loader
    except JitgenError as error:
        return str(error)
    return ""


IMPOSSIBLE = ("/dev/null/x", "/proc/nowhere/x", "/etc/passwd/x", f"/{'x' * 300}/y", "/usr", "/dev")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("value", IMPOSSIBLE, ids=lambda value: value[:16])
@pytest.mark.parametrize(
    "variable", [setting.variable for setting in TABLE if setting.kind in ("path", "paths")]
)
def test_a_path_that_cannot_be_breaks_no_call(
    cache_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    value: str,
) -> None:
    """
    It is refused by the first session, in one line that names it, or told once and done without:
    ``JITGEN_RECORD=/`` used to end every call with an unclear error.
    """
    prebuilt()
    fill(cache_root, 1)
    if variable == "JITGEN_CACHE_DIR":
        monkeypatch.setenv("JITGEN_BASE", str(cache_root))
        value = "/dev/null/x" if value in ("/usr", "/dev") else value  # which root may write to
    monkeypatch.setenv(variable, value)
    caplog.clear()
    session = Session()
    if refusal := refused(session):
        assert variable in refusal
        assert len(refusal.splitlines()) == 1
        return
    for _ in range(3):
        with session.active():
            assert session.loader.get(CONFIGS[0], Arch.CPU).function() is not None
            if settings.record is not None:
                recorder.tally(Arch.CPU, CONFIGS[0])
                recorder.flush()
    if settings.record is not None:
        recorder.end(settings.record)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(set(messages)) <= 2, messages


class TestMiss:
    """A kernel that is nowhere: who was asked, and what each said."""

    @pytest.fixture(autouse=True)
    def store(self, cache_root: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
        """A cache with two kernels, in a process that compiles nothing."""
        prebuilt()
        found = fill(cache_root, 2)
        monkeypatch.setenv("JITGEN_ON_MISS", "error")
        return found

    def missed(self, config: GroupedGemmConfig = CONFIGS[1]) -> KernelMiss:
        with pytest.raises(KernelMiss) as caught:
            Session().get_kernel(config, Arch.CPU)
        assert len(str(caught.value).splitlines()) == 1
        return caught.value

    def test_every_place_is_named(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It used to name the root alone, though bases and a bucket had been asked as well."""
        (tmp_path / "empty").mkdir()
        (tmp_path / "bucket").mkdir()
        monkeypatch.setenv("JITGEN_BASE", f"{tmp_path}/missing:{tmp_path}/empty")
        monkeypatch.setenv("JITGEN_REMOTE", f"file://{tmp_path}/bucket")
        monkeypatch.setenv("JITGEN_SERVICE", "http://127.0.0.1:1")
        monkeypatch.setenv("JITGEN_VERIFY", "off")
        name = CONFIGS[2].name("cpu")
        text = str(self.missed(CONFIGS[2]))

        assert text.startswith(
            f"no compiled kernel {name} in any place (memory: not loaded; "
            f"JITGEN_CACHE_DIR {store.root}: not there; "
            f"JITGEN_BASE {tmp_path}/missing: there is no such folder; "
            f"JITGEN_BASE {tmp_path}/empty: not there; "
            f"file://{tmp_path}/bucket: not there; http://127.0.0.1:1: "
        )
        assert text.endswith(
            "), and compiling is off (JITGEN_ON_MISS=error); prewarm it with: jitgen prewarm "
            f"--config {name}"
        )

    def test_a_damaged_entry(self, store: Store) -> None:
        entry = store.read(key(CONFIGS[1], Arch.CPU))
        assert entry is not None
        library = folder_of(entry) / "kernel.so"
        library.chmod(0o600)
        library.write_bytes(b"damaged")

        assert "set aside as damaged, see: jitgen cache quarantine" in str(self.missed())

    def test_without_a_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JITGEN_CACHE", "off")

        assert ": not used, JITGEN_CACHE=off)" in str(self.missed())

    def test_an_entry_for_another_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jitgen.compile.toolchain.runs_level", lambda _: False)

        assert "its host code may use" in str(self.missed())
        assert "which this CPU lacks), and compiling is off" in str(self.missed())

    def test_one_that_cannot_be_read_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        session = Session()
        _ = session.loader

        def read(*_: object) -> bytes:
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr("jitgen.cache.folder.os.read", read)
            with pytest.raises(KernelMiss, match="cannot be read now, Too many open") as caught:
                session.get_kernel(CONFIGS[1], Arch.CPU)
        assert caught.value.is_passing
        assert session.get_kernel(CONFIGS[1], Arch.CPU).tier == "disk"
