# SPDX-License-Identifier: Apache-2.0
"""
The examples of images, pods and units, started: by the manifests' own commands, users and volumes.

No container runtime and no registry is asked. `.ci/images` builds the images, and EXAMPLE_IMAGES is
the folder with their file systems; else `tests/containers.py` says what stands for an image.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import time
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests import containers, documents, runtime_host
from tests.containers import Container, Stage, secret, volume
from tests.service.operating import authority, certificate, jitgen, kernel_from
from tests.unit.test_release import _built

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(bool(containers.why_not()), reason=containers.why_not()),
]

PLAN = {"PLAN": "route", "TARGET": "cpu"}
EXAMPLES = documents.ROOT / "examples"
SERVE = "registry.example/serve:v1"
START_S = 120
BUILT = os.environ.get("EXAMPLE_IMAGES", "")
SERVER = (
    {} if BUILT else {"/opt/serve/server.py": (EXAMPLES / "bundle" / "server.py", False)}
)  # an image has it already


class Image:
    """
    An image of the examples.

    Args:
        files: The Python that stands for it, or the folder with its file system.
        config: Its user, command and variables, as a builder of images writes them.
    """

    def __init__(self, files: Path, config: dict[str, Any]) -> None:
        self.files = files
        self.user = int(config["User"].partition(":")[0])
        self.command: list[str] = config["Cmd"]
        self.environment = dict(each.split("=", 1) for each in config["Env"])

    @classmethod
    def replayed(cls, stage: Stage, python: Path) -> Image:
        """Return the image of a stage of a Dockerfile, for which `python` stands."""
        variables = [f"{name}={value}" for name, value in stage.values.items()]
        command = json.loads(stage.last("CMD"))
        return cls(python, {"User": stage.last("USER"), "Cmd": command, "Env": variables})

    @classmethod
    def built(cls, name: str) -> Image:
        """Return the image that `.ci/images` built from a folder of the examples."""
        config = json.loads((Path(BUILT) / f"{name}.json").read_text(encoding="utf-8"))
        return cls(Path(BUILT) / name, config)

    @classmethod
    def of_service(cls, request: pytest.FixtureRequest) -> Image:
        """Return the image of the service, built or replayed."""
        if BUILT:
            return cls.built("service")
        (stage,) = containers.stages(EXAMPLES / "service" / "Dockerfile", {})
        assert stage.packages == ["jitgen[server]"]
        return cls.replayed(stage, request.getfixturevalue("complete"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (found,) = _built(tmp_path_factory.mktemp("dist")).glob("*.whl")
    return found


def _with_wheel(python: Path, wheel: Path) -> Path:
    """Install the wheel, with its command, as pip does without requirements."""
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    command = python.parent / "jitgen"
    command.write_text(
        f"#!{python}\nimport sys\nfrom jitgen.cli.main import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    for path in (python.parents[1], *python.parents[1].rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    return python


@pytest.fixture(scope="module")
def complete(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and every package of this one."""
    folder = tmp_path_factory.mktemp("complete") / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    lent = sysconfig.get_path("purelib")
    (site / "lent.pth").write_text(f"import site; site.addsitedir({lent!r})\n")
    return _with_wheel(folder / "bin" / "python", wheel)


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Image, Path]:
    """The image of examples/bundle, built by its steps, and the folder with its kernels."""
    if BUILT:
        image = Image.built("bundle")
        return image, image.files
    complete: Path = request.getfixturevalue("complete")
    wheel: Path = request.getfixturevalue("wheel")
    folder = tmp_path_factory.mktemp("bundle")
    first, last = containers.stages(EXAMPLES / "bundle" / "Dockerfile", PLAN)
    kernels, made = folder / "opt", folder / "tmp"
    kernels.mkdir()
    made.mkdir()
    builder = {
        "user": 0,
        "groups": [],
        "mounts": {"/opt": (kernels, True), "/tmp": (made, True)},
    }
    for number, step in enumerate(_steps(first)):
        container = Container(
            folder / f"step-{number}", complete, environment=first.values, **builder
        )
        done = container.run("sh", "-ec", step)
        assert done.returncode == 0, f"{step}: {done.stderr}"

    names = [name for name in last.packages if name not in ("jitgen", _LIBRARY)]
    assert last.without_requirements == ["jitgen", _LIBRARY]
    python = _with_wheel(runtime_host.make(folder / "venv", names), wheel)
    image = Image.replayed(last, python)
    for number, step in enumerate(_steps(last)):
        container = Container(folder / f"last-{number}", python, environment=last.values, **builder)
        done = container.run("sh", "-ec", step)
        assert done.returncode == 0, f"{step}: {done.stderr}"
    return image, folder


_LIBRARY = "nvidia-cutlass-dsl-libs-cu12"


def _steps(stage: Stage) -> list[str]:
    """Return the steps that are jitgen's; the others install what stands here already."""
    return [
        rest
        for word, rest in stage.steps
        if word == "RUN" and "jitgen " in rest and "pip " not in rest
    ]


class Pod:
    """
    A pod of a manifest: its containers in their order, with its user, groups and volumes.

    Args:
        spec: The pod's specification.
        folder: For everything.
        image: The image of all of its containers.
        volumes: Folders for volumes that come from elsewhere, by their names.
        variables: Values of those variables that come from Secrets.
        others: What else is mounted, by its path, and whether it is writable.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        folder: Path,
        image: Image,
        volumes: dict[str, Path],
        variables: dict[str, str] | None = None,
        others: dict[str, tuple[Path, bool]] | None = None,
    ) -> None:
        self.spec, self.folder, self.image = spec, folder, image
        self.variables, self.others = variables or {}, others or {}
        context = spec["securityContext"]
        self.user, self.group = context["runAsUser"], context["fsGroup"]
        assert context["runAsNonRoot"]
        assert self.user == image.user
        self.volumes = dict(volumes)
        for each in spec["volumes"]:
            if "emptyDir" in each:
                self.volumes[each["name"]] = volume(folder / each["name"], group=self.group)

    def container(self, spec: dict[str, Any], name: str) -> Container:
        assert spec["securityContext"]["readOnlyRootFilesystem"]
        assert spec["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        variables = {
            each["name"]: each.get("value", self.variables.get(each["name"], ""))
            for each in spec.get("env", ())
        }
        mounts = {
            each["mountPath"]: (self.volumes[each["name"]], not each.get("readOnly", False))
            for each in spec["volumeMounts"]
        }
        return Container(
            self.folder / f"root-{name}",
            self.image.files,
            user=self.user,
            groups=[self.group],
            environment={**self.image.environment, **variables},
            mounts={**mounts, **self.others},
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Run the init containers, start the container, and wait as its startup probe does."""
        for each in self.spec.get("initContainers", ()):
            done = self.container(each, each["name"]).run(*each["command"])
            assert done.returncode == 0, f"{each['name']}: {done.stdout}{done.stderr}"
        (spec,) = self.spec["containers"]
        log = self.folder / "log.txt"
        command = spec.get("command", self.image.command)
        process = self.container(spec, spec["name"]).start(*command, log=log)
        self.wait(process, "startupProbe")
        assert self.probe(process, "livenessProbe")[0] == 200
        return process

    def wait(self, process: subprocess.Popen[bytes], name: str) -> None:
        """Wait until a probe succeeds."""
        log = self.folder / "log.txt"
        end = time.monotonic() + START_S
        while (answer := self.probe(process, name))[0] != 200:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, f"{answer} {log.read_text()}"
            time.sleep(0.3)

    def probe(self, process: subprocess.Popen[bytes], name: str) -> tuple[int, str]:
        """Ask what a probe asks."""
        (spec,) = self.spec["containers"]
        return self.ask(process, spec[name]["httpGet"]["path"])

    def ask(self, process: subprocess.Popen[bytes], path: str, token: str = "") -> tuple[int, str]:
        (spec,) = self.spec["containers"]
        scheme = spec["readinessProbe"]["httpGet"].get("scheme", "HTTP").lower()
        (port,) = (each["containerPort"] for each in spec["ports"])
        return containers.ask(process, f"{scheme}://127.0.0.1:{port}{path}", token)


def _specs(file: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in containers.documents(EXAMPLES / file)}


def test_a_pod_starts_with_a_mounted_bundle(built: tuple[Image, Path], tmp_path: Path) -> None:
    image, folder = built
    spec = _specs("bundle/kubernetes.yaml")["serve-mounted"]["spec"]
    pod = Pod(spec, tmp_path, image, {"kernels": folder / "opt" / "jitgen"}, others=SERVER)

    process = pod.start()
    try:
        status, body = pod.ask(process, "/kernels")
    finally:
        process.kill()
        process.wait()

    assert status == 200
    assert {*json.loads(body).values()} == {"base"}


def test_a_pod_imports_a_signed_bundle(built: tuple[Image, Path], tmp_path: Path) -> None:
    """It could not start: two packages were missing, and a cache only read refused the import."""
    image, _ = built
    trust, bundle = tmp_path / "trust.json", tmp_path / "kernels.tar"
    builder = tmp_path / "builder.pem"
    at = {"JITGEN_TRUST": str(trust), "JITGEN_CACHE_DIR": str(tmp_path / "root")}
    jitgen("trust", "init", "--root-key", str(tmp_path / "root.pem"), **at)
    public = json.loads(jitgen("trust", "key", str(builder), "--json", **at))["public"]
    jitgen("trust", "add", "--root-key", str(tmp_path / "root.pem"), public, **at)
    jitgen("prewarm", PLAN["PLAN"], "--arch", PLAN["TARGET"], **at)
    export = ("bundle", "export", PLAN["PLAN"], "--arch", PLAN["TARGET"], "-o", str(bundle))
    jitgen(*export, "--sign", str(builder), "--builder", "tests", **at)
    spec = _specs("bundle/kubernetes.yaml")["serve-imported"]["spec"]
    group = spec["securityContext"]["fsGroup"]
    volumes = {
        "bundle": secret(tmp_path / "claim", {"kernels.tar": bundle.read_bytes()}, group=group),
        "trust": secret(tmp_path / "config", {"trust.json": trust.read_bytes()}, group=group),
    }
    pod = Pod(spec, tmp_path / "pod", image, volumes, others=SERVER)

    process = pod.start()
    try:
        status, body = pod.ask(process, "/kernels")
    finally:
        process.kill()
        process.wait()

    assert status == 200
    assert {*json.loads(body).values()} == {"disk"}

    unsigned = tmp_path / "unsigned.tar"
    jitgen(*export[:-1], str(unsigned), **at)
    (volumes["bundle"] / "kernels.tar").write_bytes(unsigned.read_bytes())
    refused = Pod(spec, tmp_path / "refused", image, volumes, others=SERVER)
    (init,) = spec["initContainers"]

    done = refused.container(init, "kernels").run(*init["command"])
    assert done.returncode == 1
    assert "sign" in done.stderr


def test_two_replicas_of_the_service_start_and_sign(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A kernel that one compiled, the other takes from the bucket, here a folder."""
    pytest.importorskip("cryptography")
    image = Image.of_service(request)
    specs = {
        (each["kind"], each["metadata"]["name"]): each
        for each in containers.documents(EXAMPLES / "service" / "kubernetes.yaml")
    }
    spec = specs["Deployment", "jitgen-service"]["spec"]
    assert spec["replicas"] == 2
    pod_spec = spec["template"]["spec"]
    group = pod_spec["securityContext"]["fsGroup"]
    signing, trust, token = authority(tmp_path)
    tables = specs["ConfigMap", "jitgen-service"]["data"]["service.toml"]
    shared = "s3://jitgen-kernels/v1"
    assert shared in tables
    bucket = volume(tmp_path / "bucket", group=group)
    names = specs["Secret", "jitgen-service"]["stringData"]
    given = {"tokens.toml": token["table"].encode(), "signing.pem": signing.read_bytes()}
    assert given.keys() < names.keys()
    volumes = {
        "settings": secret(
            tmp_path / "settings",
            {
                "service.toml": tables.replace(shared, "file:///bucket").encode(),
                "trust.json": trust.read_bytes(),
            },
            group=group,
        ),
        "secret": secret(tmp_path / "secret", given, group=group),
        "tls": secret(tmp_path / "tls", certificate(tmp_path), group=group),
    }
    started = []
    try:
        for number in range(spec["replicas"]):
            pod = Pod(
                pod_spec,
                tmp_path / f"pod-{number}",
                image,
                volumes,
                others={"/bucket": (bucket, True)},
            )
            started.append((pod, pod.start()))
        for number, (pod, process) in enumerate(started):
            pod.wait(process, "readinessProbe")
            folder = tmp_path / f"client-{number}"
            assert kernel_from(process, folder, token["token"], trust) == "service"
        compiles = [_compiles(pod, process, token["token"]) for pod, process in started]
    finally:
        for _, process in started:
            process.terminate()
            process.wait(40)
    assert compiles == [1.0, 0.0]


def _compiles(pod: Pod, process: subprocess.Popen[bytes], token: str) -> float:
    status, text = pod.ask(process, "/metrics", token)
    assert status == 200, text
    lines = [line for line in text.splitlines() if line.startswith("jitgen_service_compiles_total")]
    return sum(float(line.split()[-1]) for line in lines)
