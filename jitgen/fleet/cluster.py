# SPDX-License-Identifier: Apache-2.0
"""
Prewarm on a Dask cluster: its workers compile, and the entries come back to this cache.

A task does not compile in the Dask worker's process: if the compiler crashed there, the worker and
all its results would be lost. The task starts the same compile process as a local prewarm, with the
cache of the worker's machine, and returns the entry as bytes, so that no shared file system is
needed. The scheduler identifies a task by its kernel's key: two clients that want the same kernel
cause one compile.

Dask sends pickles: a client of a scheduler can run code on its workers, and workers on the clients.
A returned entry is checked for damage and must be the requested kernel; access to the cluster is
the responsibility of its owner.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from jitgen.cache.folder import Damaged
from jitgen.config import Arch, Config
from jitgen.errors import JitgenError, ResourceError, ToolchainError
from jitgen.plans.prewarm import PrewarmReport, PrewarmRow, PrewarmState, Progress, examine, fetched
from jitgen.plans.task import TASK, compile_task
from jitgen.remote import wire
from jitgen.runtime.override import refuse_to_share
from jitgen.runtime.spec import key, spec_of
from jitgen.settings import settings

if TYPE_CHECKING:
    from distributed import Client, Future

    from jitgen.cache import Store

CONNECT_S = 10.0
"""Seconds to wait for the scheduler."""

RETRIES = 2
"""Retries of a kernel whose process died; a refusal of the compiler is final."""


_SCHEMES = ("tcp", "tls", "ws", "wss", "ucx")
"""Schemes of the addresses of schedulers in other processes."""


class ClusterError(JitgenError):
    """There is no scheduler of a Dask cluster at an address."""


def prewarm(
    configs: Sequence[Config],
    *,
    arch: Arch,
    store: Store,
    address: str,
    timeout_s: float | None = None,
    retries: int = RETRIES,
    on_progress: Progress | None = None,
) -> PrewarmReport:
    """
    Bring `configs` into `store`, compiled by the workers of a Dask cluster.

    Args:
        configs: The kernels, each legal on `arch`; those in the store are not compiled again.
        arch: The target.
        store: The destination.
        address: Address of the scheduler, for example ``tcp://scheduler:8786``.
        timeout_s: Seconds that one compile may take; None for JITGEN_COMPILE_TIMEOUT.
        retries: How often the scheduler tries a kernel again, on any worker, after its process was
            killed, crashed or took too long.
        on_progress: Called on this thread for every kernel as it is done.

    Returns:
        The report, with one row for each config, in their order; a compile that failed is a row,
        not an exception. ``jobs`` is the number of threads of the workers that were there at the
        beginning, 0 if no worker was needed.

    Raises:
        ClusterError: There is no scheduler at `address`.
        SettingError: JITGEN_OVERRIDE has one of the kernels.
        ToolchainError: The package distributed is not installed.
    """
    start, jobs = time.perf_counter(), 0
    _check_address(address)
    configs = tuple(configs)
    refuse_to_share(configs, arch)
    specs = {spec.key: spec for spec in (spec_of(config, arch) for config in configs)}
    rows = {row.key: row for row in examine(specs.values(), store)}
    total, done = len(rows), 0
    missing = []

    def tell(row: PrewarmRow) -> None:
        nonlocal done
        done += 1
        rows[row.key] = row
        if on_progress is not None:
            on_progress(row, done, total)

    for row in list(rows.values()):
        if row.state is PrewarmState.CACHED:
            tell(row)
        elif (brought := fetched(row, specs[row.key], store)) is not None:
            tell(brought)
        else:
            missing.append(row)
    if missing:
        limit = settings.compile_timeout if timeout_s is None else timeout_s
        distributed = _distributed()
        with _client(distributed, address) as client:
            jobs = sum(client.nthreads().values())
            futures = {_submitted(client, row, arch, limit, retries): row for row in missing}
            for future in distributed.as_completed(list(futures), loop=client.loop):
                tell(_received(futures[future], future, store))
    return PrewarmReport(
        arch=arch,
        rows=tuple(rows[key(config, arch)] for config in configs),
        wall_s=time.perf_counter() - start,
        jobs=jobs,
    )


def _submitted(
    client: Client, row: PrewarmRow, arch: Arch, timeout_s: float, retries: int
) -> Future:
    """Submit a kernel; returns its future."""
    return client.submit(
        compile_on_worker,
        row.config.to_json(),
        str(arch),
        timeout_s,
        key=f"jitgen-{row.key}",
        retries=retries,
    )


def compile_on_worker(config: dict[str, object], arch: str, timeout_s: float) -> dict[str, object]:
    """
    Compile one kernel in a process of its own on this machine: the task of a Dask worker.

    It uses the settings of this machine: its cache, its remote tiers, its trust document.

    Returns:
        ``{"entry": ..., "seconds": ...}`` with the packed entry; or ``{"error": ...}`` if the
        compiler refused it, as it would on any worker.

    Raises:
        ResourceError: The process died or took too long, or this machine lacks memory, disk or the
            like: the scheduler may try again.
    """
    from jitgen.cache import Store
    from jitgen.compile import workers

    own = Store.open()
    task = compile_task(own, Config.from_json(config), Arch.parse(arch))
    outcomes = list(workers.run(TASK, [task], jobs=1, timeout_s=timeout_s))
    outcome = outcomes[0]
    if outcome.error is not None:
        raise ResourceError(f"{outcome.error}\n{outcome.log}".strip())
    answer = outcome.result
    if why := answer.get("error") or answer.get("why_private"):
        if answer.get("is_certain"):
            return {"error": why}
        raise ResourceError(why)
    entry = own.read(answer["key"])
    if entry is None:
        raise ResourceError(f"it was compiled, but {own.root} does not hold it any more")
    packed = wire.pack(entry.meta.encode(), entry.files, entry.signatures)
    return {"entry": packed, "seconds": outcome.seconds}


def _received(row: PrewarmRow, future: Future, store: Store) -> PrewarmRow:
    """Return the row of a kernel; publish its entry to the store if it was compiled."""
    if future.status != "finished":
        error = future.exception() if future.status == "error" else None
        # the first line says what happened; the worker's log has the output of the process
        words = (str(error) if error else f"its task is {future.status}").partition("\n")[0]
        kind = f"{type(error).__name__}: " if error else ""
        return replace(row, state=PrewarmState.FAILED, error=f"{kind}{words}")
    answer = future.result()
    if "error" in answer:
        return replace(row, state=PrewarmState.FAILED, error=answer["error"])
    seconds = float(answer["seconds"])
    try:
        packed = wire.unpack(answer["entry"], row.key)
        entry = store.publish(packed.meta, packed.files, packed.signatures, is_fetched=True)
    except Damaged as damage:
        return replace(row, state=PrewarmState.FAILED, error=f"what came back is damaged: {damage}")
    if entry.why_private:
        error = f"it was compiled, but is not kept: {entry.why_private}"
        return replace(row, state=PrewarmState.FAILED, error=error, seconds=seconds)
    size = entry.meta.size_bytes
    return replace(row, state=PrewarmState.COMPILED, bytes=size, seconds=seconds)


def _check_address(address: str) -> None:
    """
    Raise ClusterError unless `address` has the form of a scheduler's address. Dask would check it
    in a half-made client, and print a traceback when that client is collected.
    """
    scheme, separator, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    if not separator:
        scheme = "tcp"
    if scheme not in _SCHEMES:
        raise _no_scheduler(address, f"the scheme {scheme!r} is not one of {', '.join(_SCHEMES)}")
    if not host or not (port.isdecimal() and 0 < int(port) < 2**16):
        raise _no_scheduler(address, "it must be a host and a port")


def _no_scheduler(address: str, words: str) -> ClusterError:
    return ClusterError(
        f"there is no Dask scheduler at {address} ({words}); an address is, for example, "
        "tcp://scheduler:8786"
    )


def _client(distributed: ModuleType, address: str) -> Client:
    try:
        return distributed.Client(
            address, timeout=CONNECT_S, set_as_default=False, name="jitgen-prewarm"
        )
    except (OSError, ValueError) as error:
        words = " ".join(str(error).split())
        raise _no_scheduler(address, words) from error


def _distributed() -> ModuleType:
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise ToolchainError(
            f"a Dask cluster needs the package distributed ({error}); run: pip install "
            "'jitgen[dask]'"
        ) from error
