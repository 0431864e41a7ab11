# SPDX-License-Identifier: Apache-2.0
"""The service: its parts, its start, its periodic work, and its end."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

from jitgen._version import __version__
from jitgen.cache import Store
from jitgen.cache.disk import cause
from jitgen.errors import CacheError, JitgenError, SettingError
from jitgen.ownership.files import keep_private
from jitgen.server.bucket import open_bucket
from jitgen.server.built import Built
from jitgen.server.confine import Confinement, probe
from jitgen.server.connection_slots import ConnectionSlots
from jitgen.server.descriptors import FEW_DESCRIPTORS, max_connections
from jitgen.server.entry_store import EntryStore
from jitgen.server.failures import Failures
from jitgen.server.history import History
from jitgen.server.jobs import JobState, Queue
from jitgen.server.leases import Leases
from jitgen.server.lock import require_locked
from jitgen.server.log import Log
from jitgen.server.metrics import Metrics
from jitgen.server.miss_log import MissLog
from jitgen.server.pools import Pool
from jitgen.server.prewarms import Prewarms
from jitgen.server.quotas import Quotas
from jitgen.server.revocations import Revocations
from jitgen.server.settings import ServiceSettings
from jitgen.server.signer_client import NO_TRUST, SignerClient
from jitgen.server.tokens import Tokens, read_tokens
from jitgen.server.uploads import Unattested
from jitgen.server.validator import Validator
from jitgen.server.vouching import Vouching
from jitgen.server.work import Worker
from jitgen.signing.edit import taken_back
from jitgen.signing.standing import State

_TOUCH_S = 1800.0
_LOOK_S = 2.0  # between two checks of cached entries against the disk
_UPLOADS = 8  # uploads at a time: read, unpacked, and rebuilt outside of the queue
_PROBE_S = 10.0  # for which the result of a test of the disk is used


class Service:
    """
    One service. Its event loop alone may use it.

    Attributes:
        settings: The operator's settings.
        tokens: Tokens and their scopes.
        entry_store: Its entries.
        vouching: Decides which entries are handed out.
        unattested: Uploads of clients.
        pools: Its toolchains, by name.
        work: The object that runs jobs.
        queue: Its jobs.
        prewarms: Its prewarms.
        quotas: Requests and streams under way, by token.
        connections: Slots of the connections.
        uploads: Limits the uploads under way.
        revoking: Held while revocations are added or removed.
        failures: Recent compile failures.
        miss_log: Recent misses.
        signer: Connection to its signer.
        leases: Leases and entries that it shares with other services.
        metrics, log: Its metrics and its log.
        history: Growth of the counters in the last day.
        unconfined: Why its compile processes are not confined; empty if they are.
        started: Time at which it started, in seconds since 1970.

    Raises:
        SettingError: A file that the settings name is wrong.
        CacheError: The store cannot be used.
    """

    def __init__(self, settings: ServiceSettings, log: Log | None = None) -> None:
        self.settings = settings
        self.log = log or Log()
        self.metrics = Metrics()
        self.miss_log = MissLog()
        self.started = time.time()
        self.history = History(self.metrics, self.started)
        self.tokens: Tokens = read_tokens(settings.access.tokens, settings.access.anonymous)
        _private_folder(settings.state)
        store = Store(settings.store.root, "rw")
        trust = settings.signing.trust
        revocations = Revocations(settings.state, trust, store.trusted.remembered)
        self.signer = SignerClient(settings.signing, self.log)
        built = Built(settings.state, self.log)
        self.vouching = Vouching(settings.signing, revocations, built, self.signer, store, self.log)
        self.entry_store = EntryStore(store, settings.store, revocations, self.vouching)
        self.unattested = Unattested(settings.state, settings.uploads)
        confinement, self.unconfined = _confinement(settings)
        self.pools = {
            each.name: Pool(
                each,
                confinement if each.confine != "off" else Confinement(),
                settings.limits.compile_s,
                self.log,
            )
            for each in settings.toolchains
        }
        self.failures = Failures(store, settings.limits.failure_s)
        bucket = open_bucket(settings.replicas.shared, revocations, self.vouching.refusal)
        self.leases = Leases(settings.replicas, bucket, self.metrics, self.log)
        self.work = Worker(
            pools=self.pools,
            entry_store=self.entry_store,
            signer=self.signer,
            validator=Validator(settings.signing, confinement),
            leases=self.leases,
            metrics=self.metrics,
            log=self.log,
            failures=self.failures,
        )
        slots = {name: pool.jobs for name, pool in self.pools.items()}
        self.queue = Queue(settings.limits, slots, self.work)
        self.prewarms = Prewarms(self)
        self.quotas = Quotas(settings.limits)
        most = max_connections(settings.limits.connections)
        self.connections = ConnectionSlots(most, settings.limits.per_address, self.metrics)
        if most < settings.limits.connections:
            self.log.event("fewer connections", level="error", most=most, reason=FEW_DESCRIPTORS)
        self.uploads = asyncio.Semaphore(_UPLOADS)
        self.revoking = asyncio.Lock()
        self._proven: tuple[float, str] = (0.0, "")
        self._keepers: list[asyncio.Task[None]] = []
        self._renewals: set[asyncio.Task[None]] = set()
        self._logged_standing: tuple[str, str] | None = None

    async def start(self) -> None:
        """
        Start the signer and the toolchains, without waiting until the toolchains are ready.

        Raises:
            SigningError: The signing key cannot be used.
            ResourceError: There is no signer.
            LockError: The store does not have a kernel of `store.lock`, or has another one.
        """
        if self.settings.store.lock is not None:
            lock = await require_locked(self.settings.store.lock, self.entry_store)
            self.log.event("lock holds", digest=lock.digest)
        await self.signer.start()
        await self.failures.load()
        for pool in self.pools.values():
            pool.start()
        self._keepers = [asyncio.create_task(each()) for each in (self._keep, self._watch)]
        self.log.event(
            "started",
            version=__version__,
            store=str(self.settings.store.root),
            signing=self.signer.keyid or "off",
            confined=not self.unconfined,
            unconfined=self.unconfined,
        )
        self._log_standing(is_asked=True)

    def reload(self) -> None:
        """
        Read tokens, the trust document and the signing key again, and drop cached entries.

        If one of the three is wrong, its previous state stays in use.
        """
        access = self.settings.access
        try:
            self.tokens = read_tokens(access.tokens, access.anonymous)
            self.log.event("tokens read", tokens=len(self.tokens))
        except SettingError as error:
            self.log.event("tokens not read", level="error", reason=str(error))
        try:
            before = self.entry_store.revocations.trust
            self.entry_store.revocations.reload()
            trust = self.entry_store.revocations.trust
            self.log.event("trust read", version=trust.trust.version if trust else None)
            if before and trust and (gone := taken_back(before.trust, trust.trust)):
                self.log.event("revocations taken back", digests=gone, trust=trust.version)
        except SettingError as error:
            self.log.event("trust not read", level="error", reason=str(error))
        self.entry_store.invalidate()
        renewal = asyncio.create_task(self._renew(), name="renewal")
        self._renewals.add(renewal)
        renewal.add_done_callback(self._renewals.discard)

    async def _renew(self) -> None:
        await self.signer.renew()
        self.entry_store.invalidate()  # entries that the previous key signed are judged again
        self._log_standing(is_asked=True)
        self.log.event("reloaded")

    def _log_standing(self, *, is_asked: bool = False) -> None:
        """Log the standing of the signing key if it has changed, or `is_asked`."""
        found = self.vouching.standing
        told = (found.state, found.reason) if found is not None else None
        if told == self._logged_standing and not is_asked:
            return
        if told != self._logged_standing:
            self.entry_store.invalidate()  # a key that is accepted now signs entries again
        self._logged_standing = told
        if found is None:
            if self.settings.signing.is_on and self.entry_store.revocations.trust is None:
                self.log.event("signing key", level="warning", reason=NO_TRUST)
            return
        level = "error" if found.is_refused else "warning" if found.reason else "info"
        keyid = self.signer.keyid
        self.log.event(
            "signing key", level=level, keyid=keyid, state=str(found.state), reason=found.reason
        )

    async def unready(self) -> str:
        """Return why this service should get no requests; empty if it should."""
        if self.queue.is_closing:
            return "it is shutting down"
        if reason := await self._unwritable():
            return f"the store cannot be written: {reason}"
        if reason := self.signer.trouble:
            return reason
        if (found := self.vouching.standing) is not None and found.is_refused:
            return f"clients refuse what is signed here: {found.reason}"
        if not any(pool.is_ready for pool in self.pools.values()):
            return "no toolchain compiles: " + "; ".join(
                f"{pool.name}: {pool.trouble}" for pool in self.pools.values()
            )
        if len(self.queue) >= self.settings.limits.jobs:
            return "the queue is full"
        return ""

    def warnings(self) -> list[str]:
        """Return the problems that will make this service unready unless they are fixed."""
        found = self.vouching.standing
        return [found.reason] if found is not None and found.reason else []

    async def close(self) -> None:
        """Let compiles end within the grace period, then end every process."""
        self.log.event("ending", jobs=len(self.queue))
        await self.prewarms.close()
        await self.queue.close(self.settings.limits.grace_s)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for pool in self.pools.values():
            await pool.close()
        await self.signer.close()
        await asyncio.to_thread(self.entry_store.store.index.close)
        await asyncio.to_thread(self.unattested.close)
        self.log.event("ended")

    def look(self, *, is_asked: bool = False) -> None:
        """
        Add the growth of the counters to the history, if the last time is long enough ago or
        `is_asked`.
        """
        self.history.look(time.time(), self.queue.count(JobState.QUEUED), is_asked=is_asked)

    def count(self) -> None:
        """Set the gauges of the metrics to the present values."""
        self.metrics.queued.set(self.queue.count(JobState.QUEUED))
        self.metrics.compiling.set(self.queue.count(JobState.COMPILING))
        found = self.vouching.standing
        for state in State:
            is_so = found is not None and found.state is state
            self.metrics.signing.labels(str(state)).set(is_so)
        ends = found.ends if found is not None else None
        self.metrics.signing_ends.set(0.0 if ends is None else ends.timestamp())
        self.metrics.streams.set(self.quotas.num_streams)
        idle = self.connections.num_idle
        self.metrics.connections.labels("idle").set(idle)
        self.metrics.connections.labels("busy").set(len(self.connections) - idle)
        self.metrics.lru_bytes.set(self.entry_store.lru.size)
        for pool in self.pools.values():
            self.metrics.restarts.labels(pool.name).set(pool.restarts)

    async def _unwritable(self) -> str:
        at, reason = self._proven
        if time.monotonic() - at > _PROBE_S or not at:
            reason = await asyncio.to_thread(_trouble, self.entry_store.store)
            self._proven = (time.monotonic(), reason)
        return reason

    async def _keep(self) -> None:
        """Mark entries that are served from memory as used on the disk, so that they stay there."""
        while True:
            await asyncio.sleep(_TOUCH_S)
            for key in self.entry_store.lru.keys():  # noqa: SIM118 - no mapping
                with suppress(JitgenError):
                    await asyncio.to_thread(self.entry_store.store.read, key)

    async def _watch(self) -> None:
        """
        Drop cached entries that changed on the disk, reconnect to the signer, and update the
        history, every `_LOOK_S` seconds.
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.signer.revive()
                self._log_standing()
                self.look()
                if changed := await self.entry_store.drop_changed():
                    self.log.event("changed on the disk", entries=changed)
            except Exception as error:  # a bug must not end this loop
                reason = f"{type(error).__name__}: {error}"
                self.log.event("not looked after", level="error", reason=reason)


def _trouble(store: Store) -> str:
    try:
        store.probe()
    except (OSError, CacheError) as error:
        return cause(error)
    return ""


def _private_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise SettingError(
            f"store.state {path} cannot be made: {error.strerror or error}"
        ) from error
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
        raise SettingError(
            f"store.state {path}: others may write to it; run: {keep_private(path, found)}"
        )


def _confinement(settings: ServiceSettings) -> tuple[Confinement, str]:
    """Return the confinement of compile processes, and the reason if there is none."""
    wishes = {each.confine for each in settings.toolchains}
    if wishes == {"off"}:
        return Confinement(), "the settings say so"
    secrets = (
        settings.signing.key,
        settings.access.tokens,
        settings.listen.certificate_key,
    )
    hidden = tuple(path for path in secrets if path is not None)
    reason = probe(hidden)
    if not reason:
        return Confinement(is_on=True, hidden=hidden), ""
    if "require" in wishes:
        raise SettingError(f"compile processes cannot be confined here: {reason}")
    return Confinement(), reason
