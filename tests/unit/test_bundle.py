# SPDX-License-Identifier: Apache-2.0
"""Bundles: the same bytes each time, nothing in them but kernels, all of them or none taken in."""

from __future__ import annotations

import hashlib
import io
import json
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jitgen.bundle import archive, image, layer
from jitgen.bundle.export import MissingKernels, export, wanted
from jitgen.bundle.image import BundleError
from jitgen.bundle.install import install
from jitgen.cache import Store
from jitgen.cache.folder import Damaged
from jitgen.config import Arch
from jitgen.errors import CacheError, ConfigError
from jitgen.plans import Plan, load
from jitgen.remote import wire
from jitgen.runtime.session import select
from jitgen.runtime.spec import key
from jitgen.settings import settings
from jitgen.targets.legality import target
from tests.unit.bundle_fakes import path, plan, store
from tests.unit.fleet_fakes import CPU

__all__ = ["path", "plan", "store"]

pytestmark = pytest.mark.usefixtures("no_power_failure")


def _as_they_are(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    return member


@pytest.fixture
def unsigned() -> Iterator[None]:
    with settings.scope(verify="off"):
        yield


class TestExport:
    def test_the_same_bytes_each_time(self, path: Path, plan: Plan, store: Store) -> None:
        first = path.read_bytes()
        export([plan], [CPU], path, store)

        assert path.read_bytes() == first
        assert path.stat().st_mode & 0o777 == 0o644
        assert [name.name for name in path.parent.glob(".*")] == []

    def test_it_is_an_oci_layout(self, path: Path) -> None:
        """Other people's tools read it: each blob has the digest that it is named by."""
        with tarfile.open(path) as tar:
            files = {m.name: tar.extractfile(m) for m in tar.getmembers() if m.isfile()}
            read = {name: stream.read() for name, stream in files.items() if stream}
        blobs = {name: data for name, data in read.items() if name.startswith("blobs/")}
        assert json.loads(read["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
        for name, data in blobs.items():
            assert name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"
        (described,) = json.loads(read["index.json"])["manifests"]
        manifest = json.loads(blobs[f"blobs/sha256/{described['digest'][7:]}"])
        config = json.loads(blobs[f"blobs/sha256/{manifest['config']['digest'][7:]}"])
        (of_layer,) = manifest["layers"]
        packed = blobs[f"blobs/sha256/{of_layer['digest'][7:]}"]
        tar = wire.decompress(packed, 2**28)

        assert len(blobs) == 3
        assert of_layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar+zstd"
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(tar).hexdigest()}"]
        assert config["architecture"] == described["platform"]["architecture"]
        assert manifest["annotations"]["vnd.jitgen.plans"] == "small"
        assert manifest["annotations"]["vnd.jitgen.archs"] == "cpu"

    def test_the_unpacked_layer_is_a_base(
        self, path: Path, store: Store, tmp_path: Path, cache_root: Path
    ) -> None:
        """COPY and mount give this folder: every entry is read from it as it lies there."""
        bundle = image.load(path)
        tar = layer.write([e for p in bundle.entries if (e := store.read(p.meta.key)) is not None])
        with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
            opened.extraction_filter = _as_they_are  # an argument from Python 3.11.4 on
            opened.extractall(tmp_path / "mounted")  # noqa: S202
        with settings.scope(base=[tmp_path / "mounted"]):
            above = Store.open(cache_root)
            found = [above.read(packed.meta.key) for packed in bundle.entries]

        assert [entry and entry.meta for entry in found] == [p.meta for p in bundle.entries]
        assert len(found) == len(list(store.entries()))

    def test_every_problem_is_served(self, path: Path, plan: Plan) -> None:
        """Completeness: whatever is asked for within the plan, its kernel's key is there."""
        held = {packed.meta.key for packed in image.load(path).entries}
        chosen = {key(select(problem, "cpu").config, CPU) for problem in plan.problems("cpu")}
        rows = random.Random(0)
        for sweep in plan.sweeps:
            for _ in range(200):
                problem = sweep.problem.with_mean(rows.randint(sweep.min_rows, sweep.max_rows))
                chosen.add(key(select(problem, "cpu").config, CPU))

        assert chosen == held

    def test_a_missing_kernel_is_named(self, plan: Plan, store: Store, tmp_path: Path) -> None:
        lost = next(iter(store.entries()))
        store.remove(lost.key)
        with pytest.raises(
            MissingKernels, match=f"{lost.name}.*jitgen prewarm \\S+/small.toml --arch cpu"
        ):
            export([plan], [CPU], tmp_path / "x.tar", store)

        assert not (tmp_path / "x.tar").exists()

    def test_each_device_counts(self, plan: Plan, store: Store, tmp_path: Path) -> None:
        """A bundle for two devices holds what either chooses; the advice names both."""
        devices, arch = ("NVIDIA H200", "NVIDIA H100 PCIe"), Arch.parse("sm_90a")
        with pytest.raises(MissingKernels) as caught:
            export([plan], [arch], tmp_path / "x.tar", store, devices=devices)
        alone = [{s.key for s in wanted([plan], [arch], store, [each])} for each in devices]

        assert len(caught.value.names) == len(alone[0] | alone[1])
        told = "--arch sm_90a --device 'NVIDIA H200' --device 'NVIDIA H100 PCIe'"
        assert str(caught.value).endswith(told)
        with pytest.raises(ConfigError, match="device 'NVIDIA X'"):
            export([plan], [arch], tmp_path / "x.tar", store, devices=["NVIDIA X"])

    def test_all_devices_count_where_none_is_named(self, store: Store) -> None:
        """It used to hold what the target's first device chooses, and others missed kernels."""
        plan, arch = load("deepseek-v3"), Arch.parse("sm_90a")
        alone = [
            {s.key for s in wanted([plan], [arch], store, [each.name])}
            for each in target(arch).devices
        ]
        every = {spec.key for spec in wanted([plan], [arch], store)}

        assert every == set().union(*alone)
        assert every > alone[0]
        with settings.scope(device=target(arch).devices[0].name):
            assert {spec.key for spec in wanted([plan], [arch], store)} == alone[0]

    def test_it_cannot_be_written(self, plan: Plan, store: Store, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="cannot be written: No such file"):
            export([plan], [CPU], tmp_path / "none" / "x.tar", store)


@pytest.mark.usefixtures("unsigned")
class TestImport:
    def test_into_an_empty_cache(self, path: Path, cache_root: Path, store: Store) -> None:
        target = Store.open(cache_root)
        bundle = image.load(path)
        first, again = install(bundle, target), install(bundle, target)

        assert {row.fate for row in first} == {"imported"}
        assert {row.fate for row in again} == {"present"}
        for row in first:
            one, two = store.read(row.key), target.read(row.key)
            assert one is not None
            assert two is not None
            assert (one.meta, one.files) == (two.meta, two.files)

    def test_an_unpacked_one(self, path: Path, tmp_path: Path) -> None:
        with tarfile.open(path) as tar:
            tar.extraction_filter = _as_they_are
            tar.extractall(tmp_path / "layout")  # noqa: S202

        assert image.load(tmp_path / "layout").digest == image.load(path).digest

    def test_a_cache_that_may_not_be_written(self, path: Path, cache_root: Path) -> None:
        with pytest.raises(CacheError, match="JITGEN_CACHE=ro"):
            install(image.load(path), Store.open(cache_root, mode="ro"))

    def test_a_flipped_bit_anywhere(self, path: Path, cache_root: Path) -> None:
        """Most flips are found by a digest; what is in no blob is a header, or is never used."""
        good, original = path.read_bytes(), image.load(path)
        rng = random.Random(0)
        refused = 0
        for _ in range(150):
            at = rng.randrange(len(good))
            flipped = bytes([good[at] ^ (1 << rng.randrange(8))])
            path.write_bytes(good[:at] + flipped + good[at + 1 :])
            try:
                assert image.load(path).entries == original.entries
            except BundleError:
                refused += 1

        assert refused > 100

    def test_a_folder_that_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="is no bundle that can be used: it lacks oci-layout"):
            image.load(tmp_path)

    @pytest.mark.parametrize("keep", [0, 100, 512, 5000, -1])
    def test_a_short_transfer(self, path: Path, keep: int) -> None:
        path.write_bytes(path.read_bytes()[:keep])

        with pytest.raises(BundleError, match="is no bundle that can be used"):
            image.load(path)


def remade(path: Path, change: Callable[[dict[str, bytes]], object], **annotations: str) -> None:
    """Write a bundle anew, all digests right, whose layer was changed."""
    bundle = image.load(path)
    files = archive.read(path.read_bytes())
    manifest = json.loads(files[f"blobs/sha256/{bundle.digest[7:]}"])
    packed = files[f"blobs/sha256/{manifest['layers'][0]['digest'][7:]}"]
    inside = archive.read(wire.decompress(packed, 2**28))
    change(inside)
    tar = archive.write(inside.items())
    path.write_bytes(image.write(tar, bundle.annotations | annotations, "linux-x86_64", "x"))


class TestHostile:
    """A bundle whose digests are all right, and which lies."""

    def test_an_entry_under_another_key(self, path: Path) -> None:
        def swap(files: dict[str, bytes]) -> None:
            one, two, *_ = (name for name in files if name.endswith("meta.json"))
            files[one], files[two] = files[two], files[one]

        remade(path, swap)
        with pytest.raises(BundleError, match="belongs to another key"):
            image.load(path)

    def test_another_library(self, path: Path) -> None:
        def plant(files: dict[str, bytes]) -> None:
            files[next(name for name in files if name.endswith("kernel.so"))] = b"\x7fELF evil"

        remade(path, plant)
        with pytest.raises(BundleError, match=r"kernel\.so does not have its digest"):
            image.load(path)

    @pytest.mark.parametrize(
        "name",
        [
            "v1/entries/ab/evil.py",
            "v1/trust.json",
            "CACHEDIR.TAG",
            f"v1/entries/00/{'1' * 64}/meta.json",
            f"v1/entries/11/{'1' * 64}/kernel.o",
        ],
    )
    def test_what_no_store_holds(self, path: Path, name: str) -> None:
        remade(path, lambda files: files.update({name: b"x"}))
        with pytest.raises(BundleError):
            image.load(path)

    def test_fewer_kernels_than_it_says(self, path: Path) -> None:
        def drop(files: dict[str, bytes]) -> None:
            gone = next(iter(files)).rsplit("/", 1)[0]
            for name in [name for name in files if name.startswith(gone)]:
                del files[name]

        remade(path, drop)
        with pytest.raises(BundleError, match="its kernels are not those that its manifest names"):
            image.load(path)

    def test_a_bomb(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A layer of zeros, four hundred times smaller as it travels, is never unpacked."""
        remade(path, lambda files: files.update({"v1/zeros": bytes(2**20)}))
        monkeypatch.setattr(image, "MAX_BYTES", 2**20)
        assert path.stat().st_size < 2**18

        with pytest.raises(BundleError, match="does not say that it holds at most 1048576"):
            image.load(path)

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            (tarfile.SYMTYPE, "neither a file nor a folder"),
            (tarfile.LNKTYPE, "neither a file nor a folder"),
            (tarfile.CHRTYPE, "neither a file nor a folder"),
            (tarfile.FIFOTYPE, "neither a file nor a folder"),
        ],
    )
    def test_links_and_devices(self, kind: bytes, words: str) -> None:
        member = tarfile.TarInfo("index.json")
        member.type, member.linkname = kind, "/etc/passwd"

        with pytest.raises(Damaged, match=words):
            archive.read(tarred((member, b"")))

    @pytest.mark.parametrize(
        "name",
        ["/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a\x1bb", f"{'x' * 60}/{'y' * 60}"],
    )
    def test_names(self, name: str) -> None:
        with pytest.raises(Damaged):
            archive.read(tarred((tarfile.TarInfo(name), b"x")))

    def test_the_same_name_twice(self) -> None:
        with pytest.raises(Damaged, match="twice"):
            archive.read(tarred((tarfile.TarInfo("a"), b"1"), (tarfile.TarInfo("a"), b"2")))

    def test_names_that_extensions_change(self) -> None:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
            member = tarfile.TarInfo("a")
            member.pax_headers = {"path": "/etc/passwd"}
            tar.addfile(member)

        with pytest.raises(Damaged, match="neither a file nor a folder"):
            archive.read(stream.getvalue())

    def test_what_is_written_is_what_others_read(self) -> None:
        files = {"a/b": b"x" * 700, "c": b""}
        data = archive.write(files.items())
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            names = [(member.name, member.mode, member.isdir()) for member in tar.getmembers()]

        assert names == [("a", 0o755, True), ("a/b", 0o444, False), ("c", 0o444, False)]
        assert archive.read(data) == files
        assert archive.read(tarred((tarfile.TarInfo("./c"), b"1"))) == {"c": b"1"}


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()
