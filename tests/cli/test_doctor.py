# SPDX-License-Identifier: Apache-2.0
"""`jitgen doctor`: what it finds, and that it is not content next to a failure."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jitgen.cache import Store
from jitgen.cache.disk import cause
from jitgen.cli.doctor import about_machine, proof
from jitgen.config import Arch
from jitgen.targets.legality import target
from tests.cli.conftest import Jitgen
from tests.unit.store_fakes import folder_of, publish

CONTENT = "everything is in order"


def findings(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in document["findings"]}


def test_it_reports_and_is_content(jitgen: Jitgen, cache_root: Path) -> None:
    done, document = jitgen("doctor"), jitgen("doctor", "--json").document

    assert done.code == 0, done.out
    assert document["ok"]
    found = findings(document)
    assert found["torch"]["value"]
    assert found["nvidia-cutlass-dsl"]["value"]
    assert found["JITGEN_CACHE_DIR"]["value"] == f"{cache_root} (environment)"
    assert found["JITGEN_ON_MISS"]["value"] == "compile (default)"
    assert str(cache_root) in done.out
    assert not cache_root.exists()


def test_it_finds_what_is_broken(
    jitgen: Jitgen, cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_root.mkdir()
    cache_root.chmod(0o777)
    monkeypatch.setenv("JITGEN_ON_MISS", "pray")
    monkeypatch.setenv("JITGEN_ON_MIS", "error")
    done = jitgen("doctor", "--json")
    found = findings(done.document)

    assert done.code == 1
    assert not done.document["ok"]
    assert found["root"]["health"] == "fail"
    assert found["JITGEN_ON_MISS"]["health"] == "fail"
    assert found["JITGEN_ON_MIS"]["health"] == "warn"
    human = jitgen("doctor")
    assert "[fail]" in human.out
    assert CONTENT not in human.err


class TestProof:
    """What doctor says has run on a GPU."""

    @pytest.mark.parametrize(
        ("name", "arch", "words", "is_proven"),
        [
            ("NVIDIA H200", "sm_90a", "tests and benchmarks ran on one", True),
            ("NVIDIA H100 PCIe", "sm_90a", "kernels ran on an H200", False),
            ("NVIDIA B200", "sm_100a", "in the emulator alone, never on such a GPU", False),
            ("NVIDIA GB300", "sm_103a", "in the emulator alone, never on such a GPU", False),
            ("NVIDIA B200 NVL", "sm_100a", "kernels are chosen as for the NVIDIA B200", False),
        ],
    )
    def test_of_a_device(self, name: str, arch: str, words: str, is_proven: bool) -> None:
        (found,) = proof("target", "proof 0", name, Arch(arch))

        assert words in found.value
        assert found.health == ("ok" if is_proven else "note")
        assert ("jitgen bench blackwell --peers --report" in found.advice) is not is_proven

    def test_of_a_device_without_a_target(self) -> None:
        (found,) = proof("target", "proof 0", "NVIDIA A100", None)

        assert found.value == "no target has kernels for it"

    def test_every_device_of_a_gpu_says_what_ran(self) -> None:
        for arch in (arch for arch in Arch if arch.is_gpu):
            assert all(device.proof for device in target(arch).devices)

    def test_a_gpu_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (10, 3))
        monkeypatch.setattr("torch.cuda.get_device_name", lambda *_: "NVIDIA B300 SXM6 AC")
        found = {each.name: each.value for each in about_machine()}

        assert found["gpu 0"] == "NVIDIA B300 SXM6 AC (compute capability 10.3)"
        assert "never on such a GPU" in found["proof 0"]


class TestCache:
    """What is said of a cache that does not keep kernels, or not all of them."""

    def test_free_space(self, jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch) -> None:
        said = os.statvfs("/")
        value = findings(jitgen("doctor", "--json").document)["free"]["value"]
        assert value.count("B of ") == 1
        for changes, words in (
            ({"f_bavail": 2**20 // said.f_frsize}, "1.0 MiB of"),
            ({"f_favail": 0, "f_files": 10, "f_bavail": 2**30}, "no inodes"),
        ):
            fields = ("f_bavail", "f_frsize", "f_blocks", "f_favail", "f_files")
            known = {name: getattr(said, name) for name in fields} | changes
            with monkeypatch.context() as patch:
                patch.setattr(os, "statvfs", lambda _, known=known: SimpleNamespace(**known))
                done = jitgen("doctor", "--json")
                human = jitgen("doctor")
            found = findings(done.document)["free"]
            assert words in found["value"]
            assert found["health"] == "warn"
            assert CONTENT not in human.err

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
    def test_a_disk_that_refuses(
        self, jitgen: Jitgen, cache_root: Path, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It used to say that a full disk can be written, for the mode of the root allows it."""
        publish(Store.open(cache_root), 1)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr("jitgen.cache.folder.Folder.write", refuse)
        done, document = jitgen("doctor"), jitgen("doctor", "--json").document
        found = findings(document)["writable"]

        assert found["value"] == f"no: {os.strerror(number)} ({errno.errorcode[number]})"
        assert found["health"] == "warn"
        assert "JITGEN_CACHE_DIR" in found["advice"]
        assert CONTENT not in done.err

    def test_a_place_where_no_root_can_be_made(
        self, jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JITGEN_CACHE_DIR", "/proc/jitgen")

        assert findings(jitgen("doctor", "--json").document)["writable"]["health"] == "warn"

    @pytest.mark.parametrize("below", ["", "more"])
    def test_a_file_is_no_folder(
        self, jitgen: Jitgen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
    ) -> None:
        """The cache's path, or one above it, is a file: no kernel could be kept."""
        file = tmp_path / "file"
        file.touch()
        monkeypatch.setenv("JITGEN_CACHE_DIR", str(file / below))
        found = findings(jitgen("doctor", "--json").document)["writable"]

        assert found["value"] == f"no: it is no folder (ENOTDIR): {file}"
        assert "set JITGEN_CACHE_DIR to a folder" in found["advice"]

    def test_the_probe_leaves_nothing(self, jitgen: Jitgen, cache_root: Path) -> None:
        publish(Store.open(cache_root), 1)

        assert findings(jitgen("doctor", "--json").document)["writable"]["value"] == "yes"
        assert list((cache_root / "v1" / "tmp").iterdir()) == []

    def test_damaged_entries(self, jitgen: Jitgen, cache_root: Path) -> None:
        store = Store.open(cache_root)
        for number in (1, 2):
            entry = publish(store, number)
            (folder_of(entry) / "meta.json").unlink()
        store.index.close()
        (cache_root / "v1" / "journal").unlink()
        found = findings(jitgen("doctor", "--json").document)
        assert found["entries"]["advice"] == "see: jitgen cache verify"
        store.verify()
        found = findings(jitgen("doctor", "--json").document)

        assert found["quarantined"]["value"] == "2"
        assert "jitgen cache quarantine" in found["quarantined"]["advice"]

    def test_what_the_library_warns_of_counts(
        self, jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A warning on standard error used to stand next to 'everything is in order'."""
        import logging

        def warn(*_: object, **__: object) -> object:
            logging.getLogger("jitgen.cache").warning("the disk is %s", "odd")
            return stats(*_, **__)

        stats = Store.stats
        monkeypatch.setattr(Store, "stats", warn)
        done = jitgen("doctor", "--json")

        assert findings(done.document)["warning"]["value"] == "the disk is odd"
        assert CONTENT not in jitgen("doctor").err


class TestCause:
    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (OSError(errno.ENOSPC, "", "kernel.so"), "No space left on device (ENOSPC)"),
            (OSError(errno.EROFS, None, "/a"), "Read-only file system (EROFS): /a"),
            (OSError(errno.EDQUOT, "all is used"), "all is used (EDQUOT)"),
            (OSError("odd"), "odd"),
            (ValueError("no disk's"), "no disk's"),
        ],
    )
    def test_words(self, error: Exception, expected: str) -> None:
        assert cause(error) == expected


def test_it_says_without_asking_that_nothing_can_come_from_elsewhere(
    jitgen: Jitgen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A remote without a trust document fails the first call, so it is no installation in order."""
    monkeypatch.setenv("JITGEN_REMOTE", f"file://{tmp_path}/bucket")
    untrusted = jitgen("doctor", "--json")
    monkeypatch.setattr("jitgen.cli.doctor_remote.find_spec", lambda name: None)
    monkeypatch.setenv("JITGEN_REMOTE", "s3://bucket/prefix")
    bare = findings(jitgen("doctor", "--json").document)
    monkeypatch.setenv("JITGEN_REMOTE", "nonsense")
    wrong = jitgen("doctor --remote")

    assert untrusted.code == 1
    assert "jitgen trust init" in findings(untrusted.document)["setup"]["value"]
    for package in ("obstore", "zstandard"):  # jitgen[remote] would bring a compiler with it
        assert bare[package]["advice"] == f"run: pip install {package}"
    assert (wrong.code, "[fail]" in wrong.out) == (1, True)
    assert not (tmp_path / "bucket").exists()
