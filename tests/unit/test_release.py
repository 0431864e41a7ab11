# SPDX-License-Identifier: Apache-2.0
"""The files of a release: complete, with good links, the same wherever they are built."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest

from docs.site import provenance, release, stage
from jitgen import __version__
from jitgen.errors import SigningError
from jitgen.signing.keys import PrivateKey
from tests import documents

HOME = "https://example.org/jitgen/blob/v0"
FOLDERS = ("docs", "examples", "release", "tests", ".ci")
ALONE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "constraints.txt")


def _wanted() -> list[str]:
    """Return the files that the source distribution must hold besides the package."""
    found = [
        path.relative_to(documents.ROOT).as_posix()
        for folder in FOLDERS
        for path in (documents.ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return [*found, *ALONE]


def test_the_sources_hold_tests_and_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    """MANIFEST.in, as setuptools reads it."""
    from setuptools.command.egg_info import FileList

    monkeypatch.chdir(documents.ROOT)
    files = FileList()
    for line in documents.text("MANIFEST.in").splitlines():
        if line and not line.startswith("#"):
            files.process_template_line(line)
    listed = {Path(name).as_posix() for name in files.files}

    assert set(_wanted()) - listed == set()
    assert not any("__pycache__" in name for name in listed)


def test_no_link_of_the_readme_is_relative() -> None:
    if "](docs/install.md)" not in (stage.ROOT / release.README).read_text(encoding="utf-8"):
        pytest.skip("the README of a source distribution is one already")
    text = release.readme(HOME)

    assert f"]({HOME}/docs/install.md)" in text
    assert f"]({HOME}/examples)" in text
    assert [found[2] for found in stage.LINK.finditer(text)] == []


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    """The build backend, which no package holds."""
    spec = importlib.util.spec_from_file_location("backend", documents.ROOT / "release/backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tar(names: list[str], *, at: int, mode: int) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode, info.uname = len(name), at, mode, f"user{at}"
            archive.addfile(info, io.BytesIO(name.encode()))
    return made.getvalue()


def test_sources_are_packed_alike(backend: ModuleType, tmp_path: Path) -> None:
    """It depends on neither the order of files, their times, their owner nor the umask."""
    one, two = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
    one.write_bytes(_tar(["a", "b"], at=1_800_000_000, mode=0o644))
    two.write_bytes(_tar(["b", "a"], at=1_700_000_000, mode=0o600))
    assert one.read_bytes() != two.read_bytes()

    for path in (one, two):
        backend.normalise_tar(path, 1_790_000_000)

    assert one.read_bytes() == two.read_bytes()
    with tarfile.open(one) as archive:
        assert [(each.name, each.mtime, each.mode) for each in archive] == [
            ("a", 1_790_000_000, 0o644),
            ("b", 1_790_000_000, 0o644),
        ]
        held = archive.extractfile("b")
        assert held is not None
        assert held.read() == b"b"


def test_wheels_are_packed_alike(backend: ModuleType, tmp_path: Path) -> None:
    """Executable files stay executable, and metadata comes last."""
    files = [("x-1.dist-info/RECORD", 0o644), ("x/run", 0o755), ("x/a", 0o644)]
    for place, day in (("one.whl", 1), ("two.whl", 2)):
        with zipfile.ZipFile(tmp_path / place, "w") as archive:
            for name, mode in files[::-1] if day == 2 else files:
                info = zipfile.ZipInfo(name, (2026, 1, day, 0, 0, 0))
                info.external_attr = (0o100000 | (mode & 0o700 if day == 2 else mode)) << 16
                archive.writestr(info, name)
        backend.normalise_zip(tmp_path / place, 1_790_000_000)

    assert (tmp_path / "one.whl").read_bytes() == (tmp_path / "two.whl").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.whl") as archive:
        assert [(each.filename, each.external_attr >> 16) for each in archive.infolist()] == [
            ("x/a", 0o100644),
            ("x/run", 0o100755),
            ("x-1.dist-info/RECORD", 0o100644),
        ]
        assert archive.read("x/run") == b"x/run"


def test_the_time_is_the_source_date(backend: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    assert backend.epoch() == 1_790_000_000

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert backend.epoch() == backend.FIRST_DAY

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(SystemExit, match="SOURCE_DATE_EPOCH must be seconds since 1970"):
        backend.epoch()


def test_the_bill_lists_what_is_required() -> None:
    """Every direct requirement is a component with its tested version, and says who requires it."""
    bill = provenance.bill({"jitgen.whl": "0" * 64}, 1_790_000_000)
    by_name = {each["name"]: each for each in bill["components"]}
    required = {name for name, each in by_name.items() if each["scope"] == "required"}
    pinned = dict(
        re.findall(r"^([\w.-]+)==(\S+)$", documents.text("constraints.txt"), re.MULTILINE)
    )

    assert {"apache-tvm-ffi", "nvidia-cutlass-dsl", "torch"} < required
    assert by_name["torch"]["version"] == pinned["torch"]
    assert by_name["torch"]["purl"] == f"pkg:pypi/torch@{pinned['torch']}"
    assert by_name["cryptography"]["properties"][0]["value"] == "jitgen[signing]"
    assert len(by_name) == len(pinned)
    assert bill["metadata"]["component"]["purl"] == f"pkg:generic/jitgen@{__version__}"
    assert {f"pkg:pypi/{name}@{by_name[name]['version']}" for name in required} < {
        *bill["dependencies"][0]["dependsOn"]
    }


class TestSignedProvenance:
    """It names a key, and files whose bytes are checked."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A release of two small files, signed by `key`."""
        files = [tmp_path / "jitgen.tar.gz", tmp_path / "jitgen.whl"]
        for path in files:
            path.write_text(path.name)
        provenance.write(tmp_path, files, "c" * 40, 1_790_000_000, HOME, self.key)
        return tmp_path

    key = PrivateKey.generate()

    def test_a_release_as_it_was_built(self, folder: Path) -> None:
        assert provenance.check(folder, self.key.public) == "c" * 40
        assert f"jitgen-{__version__}.intoto.jsonl" in (folder / "SHA256SUMS").read_text()

    def test_another_key(self, folder: Path) -> None:
        with pytest.raises(SigningError, match=r"is no provenance that [0-9a-f]{12} signed"):
            provenance.check(folder, PrivateKey.generate().public)

    def test_other_bytes(self, folder: Path) -> None:
        (folder / "jitgen.whl").write_text("jitgen.wh1")

        with pytest.raises(SigningError, match=r"jitgen\.whl is not the file that was released"):
            provenance.check(folder, self.key.public)

    def test_a_missing_file(self, folder: Path) -> None:
        (folder / "jitgen.tar.gz").unlink()

        with pytest.raises(SigningError, match=r"jitgen\.tar\.gz is missing"):
            provenance.check(folder, self.key.public)

    def test_a_changed_statement(self, folder: Path) -> None:
        """Its subject is exchanged together with the file."""
        (signed,) = folder.glob("*.intoto.jsonl")
        document = json.loads(signed.read_text())
        statement = provenance.statement({"jitgen.whl": "0" * 64}, "d" * 40, HOME)
        document["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
        signed.write_text(json.dumps(document))

        with pytest.raises(SigningError, match="is no provenance"):
            provenance.check(folder, self.key.public)

    def test_none_is_signed_without_a_key(self, tmp_path: Path) -> None:
        provenance.write(tmp_path, [], "c" * 40, 1_790_000_000, HOME)

        with pytest.raises(SigningError, match=r"intoto\.jsonl cannot be read"):
            provenance.check(tmp_path, self.key.public)


@pytest.mark.parametrize(("found", "says"), [("65.5.0", "has 65.5.0"), (None, "has none")])
def test_a_setuptools_that_cannot_build_is_refused_in_a_sentence(
    found: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(release, "version", version)
    with pytest.raises(release.NotBuilt, match=rf"{says}: pip install 'setuptools>=77'"):
        release.built(HOME, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, made without a network by one command."""
    return _built(tmp_path_factory.mktemp("dist"))


def _built(out: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "docs.site", "dist", "--home", HOME, "-o", str(out)]
    done = subprocess.run(
        command,
        cwd=documents.ROOT,
        env=os.environ | environment,
        umask=0o077 if environment else -1,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.nightly
def test_all_is_in_both(dist: Path) -> None:
    """The README of both is the rewritten one."""
    (sources,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = set(release._tracked())

    assert {name for name in _wanted() if name in tracked} <= names
    with zipfile.ZipFile(wheel) as packed:
        (place,) = (name for name in packed.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(packed.read(place))
        tops = {name.partition("/")[0] for name in packed.namelist()}
    assert f"]({HOME}/docs/install.md)" in metadata.get_payload()
    assert {top for top in tops if not top.endswith(".dist-info")} == {"jitgen"}


@pytest.mark.nightly
def test_a_second_build_gives_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    """Elsewhere, with another umask, time zone, language and order of sets."""
    other = _built(tmp_path, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")

    assert _digests(dist) == _digests(other)
    assert len(_digests(dist)) == 5


@pytest.mark.nightly
def test_digests_and_provenance_are_those_of_the_files(dist: Path) -> None:
    found = _digests(dist)
    stated = dict(
        reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines()
    )
    said = json.loads((dist / f"jitgen-{__version__}.provenance.json").read_text())
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=documents.ROOT, text=True)

    assert stated == {name: found[name] for name in found if name != "SHA256SUMS"}
    assert {each["name"]: each["digest"]["sha256"] for each in said["subject"]} == {
        name: found[name] for name in found if name.endswith((".whl", ".gz"))
    }
    (commit,) = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"]["gitCommit"] == head.strip()


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `python` of an environment with tools that judge a release, which come from an index."""
    folder = tmp_path_factory.mktemp("tools")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    packages = ("twine", "cyclonedx-python-lib[json-validation]>=11,<12")
    subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return python


@pytest.mark.nightly
def test_an_index_would_take_them(dist: Path, tools: Path) -> None:
    """By ``twine check``."""
    files = [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]

    subprocess.run([tools, "-m", "twine", "check", "--strict", *files], check=True)


VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()) or "valid")
"""


@pytest.mark.nightly
def test_the_bill_is_as_its_schema_says(dist: Path, tools: Path) -> None:
    """By CycloneDX's own validator, which also refuses fields that the schema does not have."""
    text = (dist / f"jitgen-{__version__}.cdx.json").read_text(encoding="utf-8")
    wrong = json.dumps({**json.loads(text), "licence": "Apache-2.0"})
    said = [
        subprocess.run(
            [tools, "-c", VALIDATE], input=each, capture_output=True, text=True, check=True
        ).stdout.strip()
        for each in (text, wrong)
    ]

    assert said[0] == "valid"
    assert "licence" in said[1]


WALK = (
    ("--version",),
    ("demo",),
    ("plan", "show", "route"),
    ("prewarm", "route", "--arch", "cpu"),
    ("prewarm", "route", "--arch", "cpu", "--check"),
    ("select", "-g", "8", "-m", "64", "-n", "512", "-k", "512", "--arch", "sm_90a"),
    ("cache", "ls", "--json"),
    ("cache", "verify"),
    ("inspect", "{kernel}", "-o", "page.html"),
    ("bundle", "export", "route", "--arch", "cpu", "-o", "kernels.tar"),
    ("bundle", "verify", "kernels.tar"),
    ("schema", "cache", "ls"),
)
"""Commands that need code, templates, tables, plans and pages of the wheel."""


@pytest.mark.nightly
def test_the_wheel_works_where_there_is_no_checkout(dist: Path, tmp_path: Path) -> None:
    """In a new environment, in another folder, beside the packages of this one."""
    venv.create(tmp_path / "venv", with_pip=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (wheel,) = dist.glob("*.whl")
    lent = sysconfig.get_path("purelib")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "JITGEN_VERIFY": "off",
        "PIP_NO_INDEX": "1",
    }

    def run(*words: str | Path) -> str:
        command = [tmp_path / "venv" / "bin" / words[0], *words[1:]]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr[-2000:]}"
        return done.stdout

    run("pip", "install", "-q", "--no-deps", wheel)
    run("pip", "uninstall", "-q", "-y", "setuptools")  # that of the packages beside it is newer
    lending = f"import site; site.addsitedir({lent!r})\n"  # with the paths that packages add
    (site / "lent.pth").write_text(lending, encoding="utf-8")
    place = run("python", "-c", "import jitgen; print(jitgen.__file__)")

    assert Path(place.strip()).is_relative_to(tmp_path)
    kernel = ""
    for words in WALK:
        said = run("jitgen", *(kernel if word == "{kernel}" else word for word in words))
        if words[:2] == ("cache", "ls"):
            kernel = json.loads(said)["entries"][0]["name"]
    assert (tmp_path / "page.html").stat().st_size > 10_000
    # An extra is added to what is installed: no index is asked for jitgen.
    assert (
        "jitgen[signing]"
        not in run("pip", "install", "--dry-run", "jitgen[signing]").partition("Would install")[2]
    )


def test_home_must_be_a_url(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from docs.site.__main__ import main

    result = CliRunner().invoke(main, ["dist", "--home", "here", "-o", str(tmp_path)])

    assert result.exit_code == 2
    assert "https://" in result.output
