# SPDX-License-Identifier: Apache-2.0
"""
The examples of images, pods and units, started: by the manifests' own commands, users and volumes.

No container runtime and no registry is asked. `tests/containers.py` says what stands for an image.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests import containers, documents, runtime_host
from tests.containers import Container, Stage, secret, volume
from tests.unit.test_release import _built

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(bool(containers.why_not()), reason=containers.why_not()),
]

PLAN = {"PLAN": "route", "TARGET": "cpu"}
EXAMPLES = documents.ROOT / "examples"
SERVE = "registry.example/serve:v1"
START_S = 120


class Image:
    """An image of the examples: its stage of a Dockerfile, and the Python that stands for it."""

    def __init__(self, stage: Stage, python: Path) -> None:
        self.stage, self.python = stage, python
        self.user = int(stage.last("USER").partition(":")[0])

    def command(self) -> list[str]:
        command: list[str] = json.loads(self.stage.last("CMD"))
        return command


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
    complete: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Image, Path]:
    """The image of examples/bundle, built by its steps, and the folder with its kernels."""
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
    image = Image(last, python)
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
            self.image.python,
            user=self.user,
            groups=[self.group],
            environment={**self.image.stage.values, **variables},
            mounts={**mounts, **self.others},
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Run the init containers, start the container, and wait as its startup probe does."""
        for each in self.spec.get("initContainers", ()):
            done = self.container(each, each["name"]).run(*each["command"])
            assert done.returncode == 0, f"{each['name']}: {done.stdout}{done.stderr}"
        (spec,) = self.spec["containers"]
        log = self.folder / "log.txt"
        command = spec.get("command", self.image.command())
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


def _jitgen(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "jitgen", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_pod_starts_with_a_mounted_bundle(built: tuple[Image, Path], tmp_path: Path) -> None:
    image, folder = built
    spec = _specs("bundle/kubernetes.yaml")["serve-mounted"]["spec"]
    others = {"/opt/serve/server.py": (EXAMPLES / "bundle" / "server.py", False)}
    pod = Pod(spec, tmp_path, image, {"kernels": folder / "opt" / "jitgen"}, others=others)

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
    _jitgen("trust", "init", "--root-key", str(tmp_path / "root.pem"), **at)
    public = json.loads(_jitgen("trust", "key", str(builder), "--json", **at))["public"]
    _jitgen("trust", "add", "--root-key", str(tmp_path / "root.pem"), public, **at)
    _jitgen("prewarm", PLAN["PLAN"], "--arch", PLAN["TARGET"], **at)
    export = ("bundle", "export", PLAN["PLAN"], "--arch", PLAN["TARGET"], "-o", str(bundle))
    _jitgen(*export, "--sign", str(builder), "--builder", "tests", **at)
    spec = _specs("bundle/kubernetes.yaml")["serve-imported"]["spec"]
    group = spec["securityContext"]["fsGroup"]
    volumes = {
        "bundle": secret(tmp_path / "claim", {"kernels.tar": bundle.read_bytes()}, group=group),
        "trust": secret(tmp_path / "config", {"trust.json": trust.read_bytes()}, group=group),
    }
    others = {"/opt/serve/server.py": (EXAMPLES / "bundle" / "server.py", False)}
    pod = Pod(spec, tmp_path / "pod", image, volumes, others=others)

    process = pod.start()
    try:
        status, body = pod.ask(process, "/kernels")
    finally:
        process.kill()
        process.wait()

    assert status == 200
    assert {*json.loads(body).values()} == {"disk"}

    unsigned = tmp_path / "unsigned.tar"
    _jitgen(*export[:-1], str(unsigned), **at)
    (volumes["bundle"] / "kernels.tar").write_bytes(unsigned.read_bytes())
    refused = Pod(spec, tmp_path / "refused", image, volumes, others=others)
    (init,) = spec["initContainers"]

    done = refused.container(init, "kernels").run(*init["command"])
    assert done.returncode == 1
    assert "sign" in done.stderr


def test_two_replicas_of_the_service_start_and_sign(complete: Path, tmp_path: Path) -> None:
    """A kernel that one compiled, the other takes from the bucket, here a folder."""
    pytest.importorskip("cryptography")
    (stage,) = containers.stages(EXAMPLES / "service" / "Dockerfile", {})
    assert stage.packages == ["jitgen[server]"]
    image = Image(stage, complete)
    specs = {
        (each["kind"], each["metadata"]["name"]): each
        for each in containers.documents(EXAMPLES / "service" / "kubernetes.yaml")
    }
    spec = specs["Deployment", "jitgen-service"]["spec"]
    assert spec["replicas"] == 2
    pod_spec = spec["template"]["spec"]
    group = pod_spec["securityContext"]["fsGroup"]
    root_key, signing, trust = (
        tmp_path / name for name in ("root.pem", "signing.pem", "trust.json")
    )
    at = {"JITGEN_TRUST": str(trust)}
    _jitgen("trust", "init", "--root-key", str(root_key), **at)
    public = json.loads(_jitgen("trust", "key", str(signing), "--json", **at))["public"]
    _jitgen("trust", "add", "--root-key", str(root_key), public, **at)
    token = json.loads(_jitgen("token", "pods", "--scopes", "read,compile", "--json"))
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
        "tls": secret(tmp_path / "tls", _certificate(tmp_path), group=group),
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
            assert (
                _kernel_from(process, tmp_path / f"client-{number}", token["token"], at)
                == "service"
            )
        compiles = [_compiles(pod, process, token["token"]) for pod, process in started]
    finally:
        for _, process in started:
            process.terminate()
            process.wait(40)
    assert compiles == [1.0, 0.0]


def _kernel_from(
    process: subprocess.Popen[bytes], folder: Path, token: str, trusting: dict[str, str]
) -> str:
    """Get a kernel as a client of a replica; return where it came from."""
    folder.mkdir()
    (folder / "token").write_text(token)
    (folder / "token").chmod(0o600)
    program = (
        "import jitgen, jitgen.plans\n"
        "config = jitgen.plans.configs(jitgen.plans.load('route'), 'cpu')[0]\n"
        "print(jitgen.get_kernel(config, 'cpu').tier)\n"
    )
    done = subprocess.run(
        containers.beside(process, sys.executable, "-c", program),
        env={
            **os.environ,
            **trusting,
            "JITGEN_SERVICE": "https://127.0.0.1:8555",
            "JITGEN_TOKEN_FILE": str(folder / "token"),
            "JITGEN_CACHE_DIR": str(folder / "cache"),
            "SSL_CERT_FILE": str(folder.parent / "tls.crt"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _compiles(pod: Pod, process: subprocess.Popen[bytes], token: str) -> float:
    status, text = pod.ask(process, "/metrics", token)
    assert status == 200, text
    lines = [line for line in text.splitlines() if line.startswith("jitgen_service_compiles_total")]
    return sum(float(line.split()[-1]) for line in lines)


def _certificate(folder: Path) -> dict[str, bytes]:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    key, certificate = folder / "tls.key", folder / "tls.crt"
    subprocess.run(
        [
            *command.split(),
            *("-subj", "/CN=jitgen-service", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return {"tls.key": key.read_bytes(), "tls.crt": certificate.read_bytes()}
