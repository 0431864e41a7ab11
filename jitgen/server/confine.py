# SPDX-License-Identifier: Apache-2.0
"""
Confinement of compile processes: no network, no files of keys and tokens.

A compiler sees only configs, but it is a hundred megabytes of third-party code. So a supervisor
runs in namespaces of its own: a network namespace without an interface, and a mount namespace in
which an empty file covers each secret file. It then drops every capability, so that it cannot undo
this, and can never gain one again. Linux allows that to an unprivileged user through a user
namespace, unless the host forbids it, as containers often do. `probe` finds out before the first
request; the log and ``/v1/info`` say what holds.

Not confined: system calls are not filtered, and other files that the service's user can read stay
readable. Where that is not enough, run the signer as another user (``[signing] socket``).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jitgen.compile import children
from jitgen.errors import SigningError
from jitgen.support.frozen import frozen

_NEWNS, _NEWUSER, _NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_LAST_CAPABILITY = 63
_PROBE_S = 20
_MODULE = "jitgen.server.confine"


@frozen
class Confinement:
    """
    How a process is confined.

    Attributes:
        is_on: Whether it is confined.
        hidden: Files that look empty to it.
    """

    is_on: bool = False
    hidden: tuple[Path, ...] = ()


def confined(command: Sequence[str], confinement: Confinement) -> list[str]:
    """
    Return the command that runs `command` as `confinement` says; `command` itself if that is off.
    """
    if not confinement.is_on:
        return list(command)
    hidden = json.dumps([str(path) for path in confinement.hidden])
    return [*children.python(_MODULE, hidden), *command]


def asked(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a short command and return its exit code and output; raises as `subprocess.run`."""
    return subprocess.run(
        command,
        cwd=children.FOLDER,
        env=children.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def probe(hidden: tuple[Path, ...] = ()) -> str:
    """Return why processes cannot be confined on this host; empty if they can."""
    look = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
    command = confined([sys.executable, "-S", "-c", look], Confinement(is_on=True, hidden=hidden))
    try:
        done = asked(command, _PROBE_S)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    words = done.stderr.strip().splitlines()
    # Without an interface no address can be reached, not even the host's own.
    if words and "Network is unreachable" in words[-1]:
        return ""
    return words[-1] if words else "the network can be reached nevertheless"


def undumpable() -> None:
    """
    Keep other processes of this user from reading this one's memory.

    Raises:
        SigningError: The system does not allow that.
    """
    try:
        _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    except OSError as error:
        raise SigningError(
            "the key cannot be kept from other processes of this user, as the system does not "
            f"allow {error.strerror}"
        ) from error


def main(hidden: str, *command: str) -> None:
    """Confine this process, then replace it by `command`."""
    try:
        _separate()
        for path in json.loads(hidden):
            _cover(path)
        _renounce()
    except OSError as error:
        sys.exit(f"processes cannot be confined here: {error}")
    os.execv(command[0], command)  # noqa: S606 - the purpose of this program


def _separate() -> None:
    """Enter new namespaces: root directly, any other user through a user namespace."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            _call("unshare", _NEWNS | _NEWNET)
        except OSError:  # root of a container that lacks the capability
            _call("unshare", _NEWUSER | _NEWNS | _NEWNET)
            _map(user, group)
    else:
        _call("unshare", _NEWUSER | _NEWNS | _NEWNET)
        _map(user, group)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def _map(user: int, group: int) -> None:
    """Map this user and group to the same numbers inside the namespace, and no others."""
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


def _cover(path: str) -> None:
    if Path(path).exists():
        _call("mount", b"/dev/null", os.fsencode(os.path.realpath(path)), None, _MS_BIND, None)


def _renounce() -> None:
    """
    Drop every capability, for this process and the program it runs: a program that root executes
    regains those of its bounding set, which is emptied here.
    """
    libc = ctypes.CDLL(None)
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError as error:
            if error.errno != errno.EINVAL:  # beyond the last capability
                raise
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError("no_new_privs is refused")


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
