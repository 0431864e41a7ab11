# SPDX-License-Identifier: Apache-2.0
"""
The examples of clusters: manifests whose parts fit together, scripts that run, a unit that loads.

`tests/service/test_examples.py` starts what they describe.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import containers, documents

yaml = pytest.importorskip("yaml", reason="needs jitgen[dev]")

EXAMPLES = documents.ROOT / "examples"
FILES = ("bundle/kubernetes.yaml", "service/kubernetes.yaml")
DOCKERFILES = ("bundle/Dockerfile", "service/Dockerfile")


def _documents(file: str) -> list[dict[str, Any]]:
    return containers.documents(EXAMPLES / file)


def _pods(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the specification of each pod of a manifest, with its name."""
    for each in _documents(file):
        if each["kind"] == "Pod":
            yield each["metadata"]["name"], each["spec"]
        elif each["kind"] == "Deployment":
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


PODS = [pytest.param(spec, id=name) for file in FILES for name, spec in _pods(file)]


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


@pytest.mark.parametrize("spec", PODS)
def test_pods_have_no_rights(spec: dict[str, Any]) -> None:
    context = spec["securityContext"]

    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for each in _containers(spec):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("spec", PODS)
def test_containers_are_pinned_and_bounded(spec: dict[str, Any]) -> None:
    for each in _containers(spec):
        _, _, tag = each["image"].partition(":")
        assert tag not in ("", "latest"), each["image"]
        assert {"cpu", "memory"} <= each["resources"]["requests"].keys()
        assert "memory" in each["resources"]["limits"]
    for each in spec["volumes"]:
        assert "sizeLimit" in each.get("emptyDir", {"sizeLimit": ""}), each["name"]


@pytest.mark.parametrize("spec", PODS)
def test_probes_ask_a_port_that_is_there(spec: dict[str, Any]) -> None:
    for each in spec["containers"]:
        ports = {port["name"] for port in each["ports"]}
        for name, path in (
            ("startupProbe", None),
            ("readinessProbe", "/readyz"),
            ("livenessProbe", "/livez"),
        ):
            asked = each[name]["httpGet"]
            assert asked["port"] in ports
            assert path in (None, asked["path"]), name


@pytest.mark.parametrize("spec", PODS)
def test_every_volume_is_there_and_is_mounted(spec: dict[str, Any]) -> None:
    there = [each["name"] for each in spec["volumes"]]
    mounted = {mount["name"] for each in _containers(spec) for mount in each["volumeMounts"]}

    assert mounted == {*there}
    assert len(there) == len({*there})
    for each in _containers(spec):
        paths = [mount["mountPath"] for mount in each["volumeMounts"]]
        assert len(paths) == len({*paths})
        assert "/tmp" in paths or each in spec.get("initContainers", ()), "Python needs one"


def test_a_gpu_is_asked_for() -> None:
    for _, spec in _pods("bundle/kubernetes.yaml"):
        (server,) = spec["containers"]
        assert server["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_parts_of_the_service_find_each_other() -> None:
    parts = {each["kind"]: each for each in _documents("service/kubernetes.yaml")}
    deployment = parts["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    (port,) = container["ports"]

    assert parts.keys() == {
        *("ConfigMap", "Secret", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"),
    }
    assert deployment["replicas"] == 2
    for selector in (
        deployment["selector"]["matchLabels"],
        parts["Service"]["spec"]["selector"],
        parts["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        parts["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels
    assert parts["PodDisruptionBudget"]["spec"]["minAvailable"] < deployment["replicas"]
    assert parts["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    (ingress,) = parts["NetworkPolicy"]["spec"]["ingress"]
    assert [each["port"] for each in ingress["ports"]] == [port["name"]]
    keys = parts["Secret"]["stringData"]
    for each in container["env"]:
        if "valueFrom" in each:
            asked = each["valueFrom"]["secretKeyRef"]
            assert (asked["name"], asked["key"] in keys) == (
                parts["Secret"]["metadata"]["name"],
                True,
            )


def test_settings_of_the_service_are_right_and_name_what_is_mounted() -> None:
    pytest.importorskip("starlette")
    from jitgen.server.settings import parse_settings

    parts = {each["kind"]: each for each in _documents("service/kubernetes.yaml")}
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    tables = tomllib.loads(parts["ConfigMap"]["data"]["service.toml"])
    settings, errors = parse_settings(tables)
    mounts = [Path(each["mountPath"]) for each in container["volumeMounts"]]
    paths = [Path(value) for table in tables.values() for value in _paths(table)]

    assert [line for line in errors if "there is no file" not in line] == []
    assert settings.listen.port == container["ports"][0]["containerPort"]
    assert pod["terminationGracePeriodSeconds"] > settings.limits.grace_s
    assert len(paths) == 6
    for path in (*paths, settings.state):
        assert any(path.is_relative_to(mount) for mount in mounts), path


def _paths(table: Any) -> Iterator[str]:
    for value in table.values() if isinstance(table, dict) else ():
        if isinstance(value, str) and value.startswith("/"):
            yield value


@pytest.mark.parametrize("file", DOCKERFILES)
def test_images_are_pinned_and_run_as_a_user_without_a_name(file: str) -> None:
    text = (EXAMPLES / file).read_text(encoding="utf-8")
    last = containers.stages(EXAMPLES / file, {})[-1]
    installs = re.findall(r"pip install (.*?)(?: &&|$)", text, re.MULTILINE)
    users = {spec["securityContext"]["runAsUser"] for name in FILES for _, spec in _pods(name)}

    assert re.search(r"^ARG PYTHON=python:[\d.]+-slim-\w+$", text, re.MULTILINE)
    assert {*re.findall(r"^FROM (\S+)", text, re.MULTILINE)} == {"${PYTHON}"}
    assert installs
    assert [each for each in installs if "-c /dist/constraints.txt" not in each] == []
    assert [
        each for each in installs if "jitgen" in each and "--find-links /dist" not in each
    ] == []
    assert {int(each) for each in last.last("USER").split(":")} == users
    assert any(word == "HEALTHCHECK" for word, _ in last.steps)
    assert json.loads(last.last("CMD"))


@pytest.mark.parametrize("folder", ["bundle", "service"])
def test_the_image_that_is_built_is_the_one_that_runs(folder: str) -> None:
    """It was built without a tag, and the manifests named one."""
    built = re.search(r"docker build -t (\S+)", (EXAMPLES / folder / "Dockerfile").read_text())
    pods = [spec for _, spec in _pods(f"{folder}/kubernetes.yaml")]

    assert built is not None
    assert {each["image"] for spec in pods for each in _containers(spec)} == {built[1]}


def test_what_the_images_install_is_pinned() -> None:
    pins = {
        name.lower()
        for name in re.findall(r"^([\w.-]+)==", documents.text("constraints.txt"), re.MULTILINE)
    }
    for file in DOCKERFILES:
        for stage in containers.stages(EXAMPLES / file, {}):
            named = {each.partition("[")[0].lower() for each in stage.packages}
            assert named - pins <= {"jitgen"}


def test_scripts_are_shell() -> None:
    for path in (*EXAMPLES.rglob("*.sbatch"), *EXAMPLES.rglob("*.sh")):
        subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With a user and a program of this machine in the place of those that it names."""
    text = (EXAMPLES / "service" / "jitgen.service").read_text(encoding="utf-8")
    unit = tmp_path / "jitgen.service"
    unit.write_text(
        text.replace("/opt/jitgen/bin/jitgen", "/bin/true").replace("User=jitgen", "User=daemon")
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.nightly
@pytest.mark.parametrize("file", FILES)
def test_manifests_are_as_their_schema_says(file: str, tmp_path: Path) -> None:
    """By the schemas of Kubernetes, which a package of an index brings; unknown fields count."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "kubernetes-validate"]
    subprocess.run(install, check=True)
    program = (
        "import sys, yaml, kubernetes_validate as k\n"
        "for each in yaml.safe_load_all(open(sys.argv[1])):\n"
        "    k.validate(each, k.latest_version(), strict=True)\n"
        "    print(each['kind'])\n"
    )
    done = subprocess.run(
        [python, "-c", program, EXAMPLES / file], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [each["kind"] for each in _documents(file)]


def _environment(folder: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which ``jitgen`` and ``torchrun`` are those of this one."""
    commands = folder / "bin"
    commands.mkdir()
    for name, module in (("jitgen", "jitgen"), ("torchrun", "torch.distributed.run")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
    (commands / "srun").write_text('#!/bin/sh\nexec "$@"\n')
    (commands / "scontrol").write_text("#!/bin/sh\necho localhost\n")
    for path in commands.iterdir():
        path.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "JITGEN_CACHE_DIR": str(folder / "root"),
        "JITGEN_ARCH": "cpu",
        **variables,
    }


@pytest.mark.nightly
def test_an_array_of_slurm_compiles_a_plan_and_ranks_find_it(tmp_path: Path) -> None:
    """Each task of the array one after the other, then the job that depends on them."""
    environment = _environment(
        tmp_path, PLAN="route", TARGET="cpu", SLURM_ARRAY_TASK_MIN="3", SLURM_ARRAY_TASK_COUNT="2"
    )
    script = EXAMPLES / "slurm" / "prewarm.sbatch"
    for task in ("3", "4"):
        each = environment | {"SLURM_ARRAY_TASK_ID": task, "SLURM_CPUS_PER_TASK": "1"}
        subprocess.run(["bash", script], env=each, check=True, capture_output=True)
    check = [sys.executable, "-m", "jitgen", "prewarm", "route", "--arch", "cpu", "--check"]
    subprocess.run(check, env=environment, check=True, capture_output=True)

    job = {
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_ID": "7",
        "RANKS_PER_NODE": "2",
        "PORT": "29517",
    }
    done = subprocess.run(
        ["bash", EXAMPLES / "slurm" / "train.sbatch"],
        cwd=documents.ROOT,
        env=environment | job,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert [line.partition(":")[0] for line in said] == ["rank 0", "rank 1"]
    assert all(line.endswith(" 0 of them compiled here") for line in said)


@pytest.mark.nightly
def test_workers_of_ray_compile_a_plan(tmp_path: Path) -> None:
    """With the Ray of an index, beside the packages of this environment."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "ray"], check=True)
    environment = _environment(tmp_path)
    command = [python, EXAMPLES / "ray" / "prewarm.py", "route", "cpu", "--shards", "2"]
    done = subprocess.run(
        [*command, "--root", tmp_path / "root", "--cpus", "1"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].endswith("has every kernel of route for cpu")
