# SPDX-License-Identifier: Apache-2.0
"""
A session: the objects that calls share, and the settings that apply to it.

There is a default session, which `jitgen.grouped_gemm`, `jitgen.get_kernel` and the other functions
use. ``with jitgen.Session(cache_dir=...)`` replaces it for the code inside and for code that runs
in a copy of its context; other threads keep theirs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from jitgen.errors import SettingError
from jitgen.runtime.loader import KernelLoader
from jitgen.selection.choice import Choice, Chooser
from jitgen.settings import settings
from jitgen.support.boundary import boundary
from jitgen.targets.devices import require_arch

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.config import Arch, Config
    from jitgen.errors import KernelMiss
    from jitgen.runtime.devices import Emulated
    from jitgen.runtime.kernel import Kernel
    from jitgen.runtime.lock import Lock
    from jitgen.runtime.locked import Place
    from jitgen.runtime.override import Override

_sessions: WeakSet[Session] = WeakSet()


class Session:
    """
    A kernel loader over one store, the choices of the selector, and cached launches.

    Safe to use from any thread. The store is opened when it is first needed.

    Example::

        with jitgen.Session(cache_dir="/srv/kernels", cache="ro", on_miss="error"):
            jitgen.grouped_gemm(...)

    Args:
        settings: Settings that apply in this session, by name; see `jitgen.settings`. They replace
            settings of the program and of the environment.

    Attributes:
        memo: Cached launches by key, several if their guards differ; only `jitgen.ops` uses it.
        families: Families of launches that differ only in their rows, by key; only `jitgen.ops`
            uses it.
        chains: Choices of chains of launches, by key; only `jitgen.layer` uses it.
        emulated: The emulated GPU that runs calls with tensors in host memory instead of the CPU;
            usually None.
        spares_sms: Whether calls leave SMs to exchanges between ranks.

    Raises:
        SettingError: A setting is not known, or its value is not allowed.
    """

    def __init__(self, **settings_inside: Any) -> None:
        self.memo: dict[Any, Any] = {}
        self.families: dict[Any, Any] = {}
        self.chains: dict[Any, Any] = {}
        self.epoch = object()
        self.emulated: Emulated | None = None
        self.spares_sms = False
        self._sparing: Session | None = None
        self._settings = settings.parsed(settings_inside)
        self._loader: KernelLoader | None = None
        self._chooser = Chooser(lambda: self.store)
        self._has_told_coverage = False
        self._lock_to_check: tuple[Lock, Path, Place | None] | None = None
        self._misses = 0
        self._lock = threading.Lock()
        _sessions.add(self)

    @classmethod
    def emulating(cls, emulated: Emulated, like: Session) -> Self:
        """Return a session with the kernels and settings of `like`, on an emulated GPU."""
        session = cls()
        session._settings = like._settings
        session._loader = like.loader
        session.emulated = emulated
        return session

    @property
    def loader(self) -> KernelLoader:
        """
        The loader of kernels, with the store that the settings named when it was first needed.

        Raises:
            SettingError: A setting is wrong, even one that was not read yet.
        """
        with self._lock:
            if self._loader is None:
                from jitgen.cache import Store

                with boundary("opening the kernel cache"), self.active():
                    _check_settings()
                    store = Store.open()
                    if store.bases:
                        store.layers.look()
                    self._loader = KernelLoader(store, self._arrived)
            return self._loader

    @property
    def chooser(self) -> Chooser:
        """Chooser of the session's kernels."""
        return self._chooser

    @property
    def store(self) -> Store:
        """Store of the session's kernels."""
        return self.loader.store

    @property
    def doubts(self) -> int:
        """
        Number of times that data for a choice could not be read. A launch that was made while this
        number grew must not be cached.
        """
        return self._chooser.doubts + self._misses

    def note_miss(self, miss: KernelMiss) -> None:
        """
        Record that another kernel is used because the chosen one is missing; misses that may be
        temporary count as `doubts`.
        """
        self._misses += miss.is_passing

    def select(self, problem: Any, arch: Arch | str | None = None, **options: Any) -> Choice:
        """Return the config to compute `problem` with; see `jitgen.select`."""
        with self.active():
            return self._chooser.select(problem, arch, **options)

    def get_kernel(self, config: Config | Override | str, arch: Arch | str | None = None) -> Kernel:
        """Return the kernel of `config`; see `KernelLoader.get`."""
        with self.active():
            return self.loader.get(config, arch)

    def freeze(self, mode: str = "error", *, lock: str | os.PathLike[str] | None = None) -> None:
        """
        End compiling (``error``) or allow it again (``off``); see `KernelLoader.freeze`.

        With `lock`, the path of a file that ``jitgen lock`` wrote, first compare this process with
        it: choices, keys, and the bytes of the kernels; missing kernels are fetched. Later calls
        use the compared choices. If the process has not used its GPU yet, the comparison is for the
        GPU of the host, or for all devices of the lock, and the first call compares again.

        Without `lock`, warn if a plan was prewarmed, but not for the GPU of this process: now, or
        at the first call if the process has not used its GPU yet.

        Raises:
            LockError: The lock cannot be read, or something differs; compiling has not ended.
            SettingError: `mode` is not allowed, or is ``off`` with a lock.
        """
        if lock is not None:
            if not isinstance(lock, (str, os.PathLike)):
                raise SettingError(f"freeze takes the path of a lock (got {lock!r})")
            if mode != "error":
                raise SettingError(f"freeze mode {mode!r} takes no lock: only error does")
            from jitgen.runtime.lock import read

            self._check_lock(read(Path(lock)), Path(lock))
        self.loader.freeze(mode)
        if lock is None:
            with self.active():
                self.tell_coverage()

    def _check_lock(self, lock: Lock, path: Path) -> None:
        """
        Raise LockError if this process differs from the lock. If it has not used its GPU yet, it is
        checked again when it does.
        """
        from jitgen.runtime import coverage
        from jitgen.runtime.locked import check

        with boundary("comparing with a lock"), self.active():
            place = check(lock, path, self._chooser, self.store)
            is_known = coverage.here() is not None
        self._lock_to_check = None if is_known else (lock, path, place)
        self._has_told_coverage = True  # a lock says all of that, and more

    def _check_locked_device(self) -> None:
        """Raise LockError if the GPU in use was not compared with the lock."""
        from jitgen.runtime import coverage

        if self._lock_to_check is None or (found := coverage.here()) is None:
            return
        lock, path, place = self._lock_to_check
        if place is not None and place[0] is found[0] and set(place[1]) & set(found[1]):
            self._lock_to_check = None
        else:
            self._check_lock(lock, path)

    def tell_coverage(self) -> None:
        """
        Warn, once, if compiling is off and a plan was prewarmed, but not for the device of calls.
        With a lock, raise LockError if the device, which was not known before, differs from it.
        """
        if self._lock_to_check is not None:
            self._check_locked_device()
        if self._has_told_coverage or not (self.loader.is_frozen or settings.on_miss == "error"):
            return
        from jitgen.runtime import coverage

        with boundary("looking for what was prewarmed"):
            self._has_told_coverage = coverage.tell(self.store)

    def forget(self) -> None:
        """Drop choices and cached launches; loaded kernels are kept."""
        self._sparing = None
        self._chooser.forget()
        self.memo.clear()
        self.families.clear()
        self.chains.clear()
        self.epoch = object()

    def reset(self) -> None:
        """
        Drop choices, cached launches and loaded kernels, so that the next call opens the store that
        the settings name then. A compile in the background is ended.
        """
        with self._lock:
            forgotten, self._loader = self._loader, None
        self._has_told_coverage = False
        self._lock_to_check = None
        self.forget()
        if forgotten is not None:
            forgotten.close()

    def close(self) -> None:
        """Stop compiling in the background; loaded kernels stay usable."""
        if self._loader is not None:
            self._loader.close()

    def _arrived(self, config: Config) -> None:
        """Drop the launches that wait for `config`, so that the next call finds it."""
        self._sparing = None
        self.epoch = object()
        for key, launches in list(self.memo.items()):
            if any(launch.awaited == config for launch in launches):
                self.memo.pop(key, None)

    def after_fork(self) -> None:
        """
        In a forked child, drop the launches that wait for a kernel, because the child has no
        background thread.
        """
        self._lock = threading.Lock()
        self.epoch = object()
        for key, launches in list(self.memo.items()):
            if any(launch.awaited is not None for launch in launches):
                self.memo.pop(key, None)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make this session the current one for the length of a with block."""
        if current.get() is self:
            yield
            return
        token = current.set(self)
        try:
            with settings.inside(self._settings):
                yield
        finally:
            current.reset(token)

    def __enter__(self) -> Self:
        _entered.set((*_entered.get(), _Entered(self)))
        return self

    def __exit__(self, *_: object) -> None:
        *others, last = _entered.get()
        _entered.set(tuple(others))
        last.leave()


class _Entered:
    """One entry into a session by a with block."""

    def __init__(self, session: Session) -> None:
        self._context = session.active()
        self._context.__enter__()

    def leave(self) -> None:
        self._context.__exit__(None, None, None)


def _check_settings() -> None:
    """
    Check all settings before the first kernel is requested, so that a mistake is found at the start
    and not at the first miss in production.
    """
    settings.check_environment()
    require_arch()
    names = ("plugins", "device", "override", "record", "remote", "service", "trust")
    if settings.verify == "always" or any(getattr(settings, name) for name in names):
        from jitgen.runtime.settings_check import check

        check()


DEFAULT = Session()
current: ContextVar[Session] = ContextVar("jitgen.session", default=DEFAULT)
"""The session of this context; a warm call only runs `current.get()` for it."""

_entered: ContextVar[tuple[_Entered, ...]] = ContextVar("jitgen.entered", default=())
"""The with blocks of this context: threads may enter one session and leave it in any order."""


def _after_fork() -> None:
    for session in _sessions:
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _forget_launches() -> None:
    """
    Clear the cached launches, when JITGEN_CHECK or JITGEN_NUMERICS is changed: no launch is cached
    while JITGEN_CHECK is on, and JITGEN_NUMERICS applies from the next call on.
    """
    for session in list(_sessions):
        session.memo.clear()
        session.families.clear()
        session.chains.clear()


settings.watch("check", _forget_launches)
settings.watch("numerics", _forget_launches)


def sparing(session: Session) -> Session:
    """
    Return a session with the kernels, choices and settings of `session`, whose calls leave SMs to
    exchanges between ranks that run at the same time. It has cached launches of its own.
    """
    found = session._sparing
    if found is None:
        found = Session()
        found._settings, found._loader = session._settings, session.loader
        found._chooser, found._has_told_coverage = session._chooser, True
        found.emulated, found.spares_sms = session.emulated, True
        session._sparing = found
    return found


def get_kernel(config: Config | Override | str, arch: Arch | str | None = None) -> Kernel:
    """
    Return the kernel of `config`: from memory, from disk, from another host, or by compiling it.

    Args:
        config: A config, a kernel's name, or an edited kernel: see `jitgen.override`.
        arch: The target; None for the one in a kernel's name, else JITGEN_ARCH, the target of the
            GPU, or cpu.

    Raises:
        As `jitgen.runtime.loader.KernelLoader.get`.
    """
    return current.get().loader.get(config, arch)


def freeze(mode: str = "error", *, lock: str | os.PathLike[str] | None = None) -> None:
    """
    End compiling in this session (``error``) or allow it again (``off``); see
    `KernelLoader.freeze`.

    Args:
        mode: ``error`` or ``off``.
        lock: A file that ``jitgen lock`` wrote: this process must choose and have the same kernels;
            otherwise LockError says what differs. See `Session.freeze` and docs/plans.md.
    """
    current.get().freeze(mode, lock=lock)


def select(
    problem: Any,
    arch: Arch | str | None = None,
    *,
    device: str | None = None,
    num_sms: int | None = None,
    use_measured: bool = True,
    mode: str | None = None,
) -> Choice:
    """
    Return the config to compute `problem` with: `Chooser.select` of the current session.
    """
    return current.get()._chooser.select(
        problem, arch, device=device, num_sms=num_sms, use_measured=use_measured, mode=mode
    )
