# SPDX-License-Identifier: Apache-2.0
"""
Containers of the examples, started as far as a machine without a container runtime lets it.

A container is a process in mount and network namespaces of its own, below a root folder that it
cannot write, with a manifest's user, groups, environment, command and volumes and no capabilities.
What it has of the image is this machine's system, read-only, and an environment of Python with the
packages that the image's Dockerfile installs and no others; or, where `.ci/images` built one, the
file system of the image, below a layer of its own. Needs root and util-linux.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
_SYSTEM = ("/bin", "/lib", "/lib64", "/sbin", "/usr")
_SETTINGS = ("alternatives", "group", "hosts", "ld.so.cache", "nsswitch.conf", "passwd", "ssl")
"""What an image has in /etc, to which volumes are added."""

_TOOLS = ("unshare", "setpriv", "nsenter", "mount", "chroot", "ip")
_FROM = re.compile(r"^FROM \S+(?: AS (\w+))?$")
_REQUIREMENT = re.compile(r"^[A-Za-z][\w.-]*(\[[\w,]+\])?$")


def why_not() -> str:
    """Return why this machine cannot start containers; empty if it can."""
    if os.geteuid() != 0:
        return "needs root: mounts, and several users"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}" if missing else ""


class Stage(NamedTuple):
    """
    One stage of a Dockerfile.

    Attributes:
        steps: Its instructions: a word, and the rest of the line.
        values: Values of its build arguments and its environment.
        packages: Packages that it installs with pip, alone or with all that they require.
        without_requirements: Packages that it installs alone.
    """

    steps: list[tuple[str, str]]
    values: dict[str, str]
    packages: list[str]
    without_requirements: list[str]

    def last(self, word: str) -> str:
        """Return the rest of the last instruction `word`."""
        return [rest for name, rest in self.steps if name == word][-1]


def stages(file: Path, arguments: Mapping[str, str]) -> list[Stage]:
    """Return the stages of a Dockerfile, built with `arguments`."""
    found: list[Stage] = []
    text = re.sub(r"^#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for line in filter(None, text.replace("\\\n", " ").splitlines()):
        word, _, rest = line.partition(" ")
        if _FROM.match(line):
            found.append(Stage([], {}, [], []))
        elif found:
            _take(found[-1], word, rest, arguments)
    return found


def _take(stage: Stage, word: str, rest: str, arguments: Mapping[str, str]) -> None:
    stage.steps.append((word, rest))
    if word == "ARG":
        name, _, default = rest.partition("=")
        stage.values[name] = arguments.get(name, default)
    elif word == "ENV":
        for each in shlex.split(rest):
            name, _, value = each.partition("=")
            stage.values[name] = re.sub(r"\$(\w+)", lambda m: stage.values[m[1]], value)
    elif word == "RUN":
        for command in re.split(r"&&|;", rest):
            words = shlex.split(command)
            if words[:2] == ["pip", "install"]:
                named = [each for each in words[2:] if _REQUIREMENT.match(each)]
                stage.packages.extend(named)
                if "--no-deps" in words:
                    stage.without_requirements.extend(named)


class Container:
    """
    One container below `folder`.

    Args:
        folder: For its root, and nothing else.
        image: The `python` of its image, or the folder with the file system of one.
        user: Its user and group.
        groups: Its further groups.
        environment: Its variables; nothing is inherited.
        mounts: By the path in the container a folder of this machine, and whether it is writable.
    """

    def __init__(
        self,
        folder: Path,
        image: Path,
        *,
        user: int,
        groups: Iterable[int],
        environment: Mapping[str, str],
        mounts: Mapping[str, tuple[Path, bool]],
    ) -> None:
        self._root = folder
        self._image = image
        self._mounts = dict(mounts)
        self._environment = dict(environment)
        if not image.is_dir():
            # last: the environment may be below /tmp, which is a volume of most pods
            self._mounts |= dict(_of_python(image))
            path = f"{image.parent}:/usr/local/bin:/usr/bin:/bin"
            self._environment = {"PATH": path, **environment}
        self._user = [f"--reuid={user}", f"--regid={user}"]
        joined = ",".join(map(str, groups))
        self._user.append(f"--groups={joined}" if joined else "--clear-groups")
        folder.mkdir(parents=True)

    def command(self, *words: str) -> list[str]:
        """Return the command line of this machine that runs `words` in the container."""
        apart = ["unshare", "--mount", "--net", "--propagation=private"]
        return [*apart, "sh", "-ec", self._script(words)]

    def run(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run `words` to their end."""
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, check=False, timeout=timeout
        )

    def start(self, *words: str, log: Path) -> subprocess.Popen[bytes]:
        """Start `words`; both streams go to `log`."""
        with log.open("wb") as out:
            return subprocess.Popen(self.command(*words), stdout=out, stderr=out)

    def _script(self, words: Iterable[str]) -> str:
        root = self._root
        lines = self._layered() if self._image.is_dir() else self._lent()
        for each in ("/dev", "/proc"):
            lines += [f"mkdir -p {root}{each}", f"mount --rbind {each} {root}{each}"]
        for place, (source, writable) in self._mounts.items():
            lines += _mounted(source, f"{root}{place}", writable=writable)
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        inside = [
            "setpriv",
            *self._user,
            "--no-new-privs",
            "--bounding-set=-all",
            "--inh-caps=-all",
        ]
        command = ["chroot", str(root), *inside, "env", "-i", "-C", "/", *variables, *words]
        lines += [
            f"mount -o remount,ro,bind {root}",
            "ip link set lo up",
            f"exec {shlex.join(command)}",
        ]
        return "\n".join(lines)

    def _lent(self) -> list[str]:
        """Mount a root that has the system of this machine."""
        root = self._root
        lines = [f"mount -t tmpfs -o mode=0755,size=64m none {root}", f"mkdir {root}/proc"]
        for place in map(Path, _SYSTEM):
            if place.is_symlink():
                lines.append(f"cp -P {place} {root}{place}")
            elif place.is_dir():
                lines += _mounted(place, f"{root}{place}", writable=False)
        lines.append(f"mkdir {root}/etc")
        return lines + [f"cp -a /etc/{each} {root}/etc/{each}" for each in _SETTINGS]

    def _layered(self) -> list[str]:
        """Mount the file system of the image, with a layer for the places of volumes."""
        layer = f"{self._root}-layer"
        own = f"lowerdir={self._image.resolve()},upperdir={layer}/upper,workdir={layer}/work"
        return [
            f"mkdir {layer}",
            f"mount -t tmpfs -o mode=0755,size=64m none {layer}",
            f"mkdir {layer}/upper {layer}/work",
            f"mount -t overlay -o {own} none {self._root}",
            f"cp /etc/hosts {self._root}/etc/hosts",  # as runtimes do
        ]


def beside(process: subprocess.Popen[bytes], *words: str | Path) -> list[str]:
    """Return the command line that runs `words` on this machine, in the network of a container."""
    return ["nsenter", f"--net=/proc/{process.pid}/ns/net", *map(str, words)]


def ask(process: subprocess.Popen[bytes], url: str, token: str = "") -> tuple[int, str]:
    """Ask a container over HTTP, as the kubelet does: without checking certificates."""
    command = beside(process, sys.executable, "-c", _ASK, url, token)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, _, body = done.stdout.strip().partition(" ")
    return int(status), body


_ASK = """
import ssl, sys, urllib.error, urllib.request
_, url, token = sys.argv
asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
try:
    context = ssl._create_unverified_context()
    answer = urllib.request.urlopen(asked, timeout=5, context=context)
    print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(0, error)
"""


def volume(path: Path, *, group: int) -> Path:
    """Make a folder like an emptyDir of a pod with this fsGroup: root's, and all may write."""
    path.mkdir(parents=True)
    os.chown(path, 0, group)
    path.chmod(0o2777)
    return path


def secret(path: Path, files: Mapping[str, bytes], *, group: int) -> Path:
    """Make a folder as a Secret or ConfigMap of a pod with this fsGroup is mounted."""
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / name).write_bytes(content)
        os.chown(path / name, 0, group)
        (path / name).chmod(0o440)
    os.chown(path, 0, group)
    path.chmod(0o3777)
    return path


def _mounted(source: Path, target: str, *, writable: bool) -> list[str]:
    is_file = source.is_file()
    made = f"mkdir -p {Path(target).parent} && touch {target}" if is_file else f"mkdir -p {target}"
    lines = [made, f"mount --bind {source} {target}"]
    return lines if writable else [*lines, f"mount -o remount,ro,bind {target}"]


def _of_python(python: Path) -> Iterator[tuple[str, tuple[Path, bool]]]:
    """Yield what an environment is made of: its folder, its Python, packages that it borrows."""
    places = {python.parents[1], Path(os.path.realpath(python)).parents[1]}
    for place in sorted(places | {Path(sysconfig.get_path("purelib"))}):
        yield str(place), (place, False)


def documents(file: Path) -> list[dict[str, Any]]:
    """Return the documents of a manifest."""
    import yaml

    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
