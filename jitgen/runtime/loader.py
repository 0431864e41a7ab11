# SPDX-License-Identifier: Apache-2.0
"""
Finds the kernel of a config: in memory, on disk, on other hosts, or by compiling it.

One thread of one process compiles a missing kernel while all others that need it wait: threads on a
lock per key in memory, processes on a file lock per key. The file lock only avoids duplicate work:
if it cannot be acquired in time, the process compiles for itself and does not fail. Getting a
kernel from memory is one dictionary lookup.

A failure for lack of a resource is tried again after some seconds, and each time after twice as
many. It is remembered only in this process, because it says nothing about other machines, and may
be over a minute later.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from jitgen.config import Arch, Config
from jitgen.errors import (
    ArtifactError,
    CaptureMiss,
    CompileError,
    JitgenError,
    RememberedFailure,
    ResourceError,
    SettingError,
)
from jitgen.events import Event, EventKind, events, warn_once
from jitgen.runtime import kernel
from jitgen.runtime.kernel import Kernel
from jitgen.runtime.override import Override
from jitgen.runtime.spec import plain, serving, spec_of
from jitgen.runtime.tiers import COMPILED, Tiers, build, fetch, readable
from jitgen.settings import settings
from jitgen.support import forks
from jitgen.support.boundary import boundary, on_fresh_stack
from jitgen.support.failing import Backoff
from jitgen.targets.devices import default_arch
from jitgen.targets.legality import named, require

if TYPE_CHECKING:
    from jitgen.cache import Entry, Store
    from jitgen.errors import KernelMiss
    from jitgen.runtime.background import Background
    from jitgen.runtime.spec import KernelSpec, Wanted


_HERE = ("memory", "disk", "base")
"""Tiers of this machine; a kernel from any other tier was a miss."""

_loaders: WeakSet[KernelLoader] = WeakSet()


class KernelLoader:
    """
    The kernels of one process over one store.

    Safe to use from any thread. After a fork the child keeps the kernels that its parent had
    loaded.

    Attributes:
        store: The store from which kernels are read, and to which they are published.
        tiers: The places in which kernels are searched.

    Args:
        store: The store from which kernels are read, and to which they are published.
        on_arrival: Called on the background thread with each config that was compiled in the
            background, so that the session drops the launches of the neighbour that was used
            instead.
    """

    def __init__(self, store: Store, on_arrival: Callable[[Config], None] = lambda _: None) -> None:
        self.store = store
        self.tiers = Tiers(store)
        self._on_arrival = on_arrival
        self._kernels: dict[tuple[Wanted | str, Arch], Kernel] = {}
        self._arrived: dict[tuple[Wanted, Arch], Kernel] = {}  # not served yet
        self._wanted: set[tuple[Config, Arch]] = set()
        self._background: Background | None = None
        self._is_closed = False
        self._backoff: Backoff | None = None  # made by the first failure that may pass
        self._lock = threading.Lock()
        self._flights: dict[str, threading.Lock] = {}
        self._frozen = False
        _loaders.add(self)

    def after_fork(self) -> None:
        """Replace the locks: threads that hold them do not exist in a forked child."""
        self._lock = threading.Lock()
        self._backoff = None
        self._flights = {}
        if self._background is not None:
            self._background.after_fork()

    @property
    def background(self) -> Background:
        """The thread that compiles kernels for later calls of `find`; started on first use."""
        with self._lock:
            if self._background is None:
                from jitgen.runtime.background import Background

                self._background = Background(self.tiers, self._arrive)
                if self._is_closed:
                    self._background.close()
            return self._background

    @property
    def is_stalled(self) -> bool:
        """
        Whether the background could not start a thread, so that kernels must be requested again.
        """
        return self._background is not None and self._background.is_stalled

    def close(self) -> None:
        """Stop compiling in the background, for good; loaded kernels stay usable."""
        with self._lock:
            self._is_closed = True
            background = self._background
        if background is not None:
            background.close()

    def freeze(self, mode: str = "error") -> None:
        """
        Turn compiling off: from now on, a request for a kernel that is neither on this machine nor
        in JITGEN_REMOTE or JITGEN_SERVICE raises. A compile that is running in the background is
        finished.

        Args:
            mode: ``error`` to freeze, ``off`` to thaw.
        """
        if mode not in ("error", "off"):
            raise SettingError(f"freeze mode {mode!r} is not allowed: it must be error or off")
        self._frozen = mode == "error"

    @property
    def is_frozen(self) -> bool:
        """Whether `freeze` has turned compiling off."""
        return self._frozen

    def loaded(self) -> list[Kernel]:
        """Return the kernels in memory."""
        return list(self._kernels.values())

    def get(self, config: Wanted | str, arch: Arch | str | None = None) -> Kernel:
        """
        Return the kernel of `config`: from memory, else from disk, else from JITGEN_REMOTE and
        JITGEN_SERVICE, else by compiling it. Edited kernels are never fetched from other hosts.

        Args:
            config: A config, the name of a kernel, or an edited kernel.
            arch: The target; None for the one that a name or an edited kernel says, else that
                `default_arch` finds.

        Raises:
            InputError: `config` is not a config, an edited kernel or a name.
            ConfigError: The name is not that of a kernel.
            UnsupportedConfig: The target cannot run `config`.
            KernelMiss: No place has the kernel, and compiling is off; the message names the places.
            SettingError: Kernels may be fetched and must be signed, and JITGEN_TRUST is not set.
            CaptureMiss: It is not loaded, and a CUDA graph is being captured.
            CompileError: The compiler refused it, now or (RememberedFailure) not long ago.
            ResourceError: Memory, processes, descriptors or disk ran out; a request some seconds
                later tries again.
            ToolchainError: The compiler, or its runtime library, is not installed.
            UnsafeCacheRoot: Another user could write code to the cache.
        """
        kernel = self._kernels.get((config, arch)) if type(arch) is Arch else None
        if kernel is None:
            with boundary("serving a kernel"):
                if isinstance(config, Override):
                    arch = config.arch if arch is None else Arch.parse(arch)
                    config.on(arch)
                else:
                    config, arch = named(config, arch)
                target = default_arch() if arch is None else Arch.parse(arch)
                kernel = self._kernels.get((config, target)) or self._miss(config, target)
        return kernel

    def _miss(self, wanted: Wanted, arch: Arch) -> Kernel:
        """Return a kernel that is not in memory, if it may be loaded at this moment."""
        require(plain(wanted), arch)
        _refuse_while_capturing(wanted, arch)
        self.note_wanted(plain(wanted), arch)
        with boundary(f"serving {plain(wanted).name(arch)}"):
            return on_fresh_stack(lambda: self._load(wanted, arch))

    def _load(self, wanted: Wanted, arch: Arch) -> Kernel:
        """
        Get a kernel that is not in memory. This method shows the complete order in which places are
        searched.

        Events are delivered after the lock of the key is released.
        """
        start, spec = time.perf_counter(), serving(wanted, arch)
        with events.held(), self._flight(spec.key), forks.busy():
            # Memory again (another thread may have been first), the disk, the roots of JITGEN_BASE.
            kernel = self.find(wanted, arch, tells_miss=True)
            if kernel is not None:
                return kernel
            if self._may_compile:
                # One process of a host: the disk and the roots again, JITGEN_REMOTE,
                # JITGEN_SERVICE, the compiler, which publishes to the disk.
                with self._backed_off(spec):
                    kernel = self._opened(spec, build(self.tiers, spec), start)
                    if kernel is None:  # the fetched file is no library
                        kernel = _kernel(spec, *build(self.tiers, spec, fetches=False))
            else:
                # The same without the compiler.
                found = fetch(self.tiers, spec)
                kernel = None if isinstance(found, str) else self._opened(spec, found, start)
                if kernel is None:
                    seconds = time.perf_counter() - start
                    self.store.index.record_miss(spec.key, spec.name, "nowhere", seconds)
                    raise self._nowhere(wanted, spec, found if isinstance(found, str) else "")
            self._kernels[wanted, arch] = kernel
            return kernel

    def find(self, config: Wanted, arch: Arch, *, tells_miss: bool = False) -> Kernel | None:
        """
        Return the kernel of a legal `config` if it is compiled on this machine; never waits.

        While a CUDA graph is captured, only kernels that were returned before are found, because
        the first launch of any other would allocate memory. With `tells_miss`, a missing kernel
        emits an event.
        """
        kernel = self._kernels.get((config, arch))
        if kernel is None and not is_capturing(arch):
            with boundary(f"looking for {plain(config).name(arch)}"), events.held(), forks.busy():
                kernel = self._arrived.get((config, arch)) or self._from_tiers(
                    config, arch, tells_miss=tells_miss
                )
            if kernel is not None:  # several threads may have loaded it; the first one counts
                kernel = self._kernels.setdefault((config, arch), kernel)
        return kernel

    def _from_tiers(self, config: Wanted, arch: Arch, *, tells_miss: bool) -> Kernel | None:
        """Return the kernel from the tiers of this machine, or None: see `Tiers.get`."""
        start, spec = time.perf_counter(), serving(config, arch)
        found = readable(self.tiers, spec, tells_miss=tells_miss)
        return None if found is None else self._opened(spec, found, start)

    def _opened(self, spec: KernelSpec, found: tuple[Entry, str], start: float) -> Kernel | None:
        """
        Return the kernel of an entry; None if a fetched entry is not a library, which is then
        quarantined.

        Args:
            spec: The requested kernel.
            found: The entry, and the name of its tier.
            start: Time of the request, in seconds of `time.perf_counter`.
        """
        entry, tier = found
        try:
            kernel = _kernel(spec, entry, tier)
        except ArtifactError as error:
            if tier == COMPILED:
                raise
            self.store.quarantine(entry, str(error))
            warn_once(f"load {entry.key}", "%s; compiling it again", error)
            return None
        seconds = time.perf_counter() - start
        if tier in _HERE:
            self.store.index.record_use(entry.key, tier)
        else:
            self.store.index.record_miss(entry.key, kernel.name, tier, seconds)
        if tier != COMPILED:
            events.emit(
                Event(
                    kind=EventKind.HIT,
                    kernel=kernel.name,
                    key=entry.key,
                    tier=tier,
                    seconds=seconds,
                )
            )
        return kernel

    @contextmanager
    def _flight(self, key: str) -> Iterator[None]:
        """Hold the lock of `key` among the threads of this process."""
        with self._lock:
            flight = self._flights.setdefault(key, threading.Lock())
        with flight:
            yield

    @contextmanager
    def _backed_off(self, spec: KernelSpec) -> Iterator[None]:
        """
        Guard the with block, which compiles `spec`, unless that failed seconds ago for lack of a
        resource.

        A failure is reported by an event; the time of a temporary failure is recorded for the next
        attempt.

        Raises:
            ResourceError: It is too early to try again.
        """
        backoff = self._backoff
        if backoff is not None and (reason := backoff.waits(spec.key)):
            raise ResourceError(f"{reason} (tried again in some seconds, when asked again)")
        try:
            with boundary(f"serving {spec.name}"):
                yield
        except JitgenError as error:
            if isinstance(error, ResourceError):
                with self._lock:
                    backoff = self._backoff = self._backoff or Backoff()
                backoff.failed(spec.key, str(error))
            if not isinstance(error, RememberedFailure):
                reason = error.reason if isinstance(error, CompileError) else str(error)
                events.emit(
                    Event(kind=EventKind.ERROR, kernel=spec.name, key=spec.key, detail=reason)
                )
            raise
        if backoff is not None:
            backoff.succeeded(spec.key)

    @property
    def _may_compile(self) -> bool:
        return not self._frozen and settings.on_miss != "error"

    def _nowhere(self, wanted: Wanted, spec: KernelSpec, elsewhere: str) -> KernelMiss:
        """Return the error for a kernel that no place has, while compiling is off."""
        from jitgen.runtime.missing import miss

        why = "the session is frozen" if self._frozen else "JITGEN_ON_MISS=error"
        return miss(wanted, spec.arch, spec, self.tiers, elsewhere, why)

    def note_wanted(self, config: Config, arch: Arch) -> None:
        """
        Count a requested kernel that is not in memory, and warn if there are more than
        JITGEN_MAX_KERNELS.
        """
        if (config, arch) in self._wanted:
            return
        self._wanted.add((config, arch))
        most = settings.max_kernels
        if most and len(self._wanted) > most:
            from jitgen.runtime import budget

            budget.tell(tuple(self._wanted), (config, arch), most)

    def _arrive(self, config: Config, arch: Arch, entry: Entry, tier: str) -> None:
        """
        Take a kernel that was compiled in the background.

        It is loaded on the background thread, which does not use a GPU; the next `find` returns it
        to its caller.
        """
        self._arrived[config, arch] = _kernel(spec_of(config, arch), entry, tier)
        self._on_arrival(config)


def _kernel(spec: KernelSpec, entry: Entry, tier: str) -> Kernel:
    """Load the native code of `entry`, which came from `tier`; return the kernel."""
    start = time.perf_counter()
    function = kernel.load(entry)
    seconds = time.perf_counter() - start
    events.emit(
        Event(
            kind=EventKind.LOAD, kernel=entry.meta.name, key=entry.key, tier=tier, seconds=seconds
        )
    )
    return Kernel(
        config=spec.config, arch=spec.arch, key=entry.key, tier=tier, entry=entry, function=function
    )


def is_capturing(arch: Arch) -> bool:
    """Return whether a CUDA graph is being captured from the current stream."""
    torch = sys.modules.get("torch")  # without torch there is no capture
    if not arch.is_gpu or torch is None:
        return False
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _refuse_while_capturing(config: Wanted, arch: Arch) -> None:
    """
    Raise CaptureMiss during a capture: loading a kernel allocates, which would break the graph.
    """
    if is_capturing(arch):
        from jitgen.runtime.override import called

        raise CaptureMiss(
            plain(config).name(arch),
            f"a CUDA graph is being captured and {called(config, arch)} is not loaded yet; call it "
            "once, or jitgen.get_kernel(...), before the capture",
        )


def _after_fork() -> None:
    for loader in _loaders:
        loader.after_fork()


os.register_at_fork(after_in_child=_after_fork)
