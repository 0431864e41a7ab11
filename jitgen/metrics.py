# SPDX-License-Identifier: Apache-2.0
"""
Prometheus metrics of the kernels in a process: `install`.

::

    import jitgen.metrics
    jitgen.metrics.install()               # into prometheus-client's registry

The extra ``jitgen[metrics]`` installs prometheus-client and nothing else. It is separate from
``[server]``, since its users are serving engines that export metrics and run no compile service.

The metrics count the events of `jitgen.events` from `install` on. A warm call emits no event, so it
costs the same with metrics. Labels have a fixed set of values, never names, keys or reasons, which
bounds the number of series. The multi-process mode of prometheus-client works.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from jitgen._version import __version__
from jitgen.errors import InputError, ToolchainError
from jitgen.events import Event, on_event
from jitgen.settings import settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Histogram

_ANY = "any"
"""Label instead of a tier: all tiers were asked."""

_OUTCOMES: dict[str, Callable[[Event], tuple[str, str]]] = {
    "hit": lambda event: (event.tier, "hit"),
    "miss": lambda _: (_ANY, "miss"),
    "compile": lambda _: ("compiler", "compiled"),
    "error": lambda event: ("disk" if event.kernel == "cache" else "compiler", "failed"),
    "fetch": lambda event: (event.tier, "failed" if event.detail else "fetched"),
    "reject": lambda event: (event.tier, "rejected"),
    "quarantine": lambda event: (event.tier or "disk", "damaged"),
    "evict": lambda event: (event.tier or "disk", "evicted"),
    "fallback": lambda _: (_ANY, "fallback"),
    "budget": lambda _: (_ANY, "beyond_budget"),
}
"""Labels of an event, tier and outcome, by its kind; other kinds are not counted."""

_WANTED = frozenset({"hit", "miss", "fallback"})
"""Kinds of events of which each is a request for a kernel."""

_LOAD_S = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 0.1, 1.0)
_FETCH_S = (1e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_QUEUE_S = (1e-3, 1e-2, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_COMPILE_S = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0, 300.0)


class Metrics:
    """
    The metrics of this process in one registry of prometheus-client; see `install`.

    Args:
        registry: The registry; None for prometheus-client's own.

    Raises:
        ToolchainError: prometheus-client is not installed.
        ValueError: The registry has metrics with these names already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        client = _client()
        to = client.REGISTRY if registry is None else registry
        self._registry = to
        self._kernels = client.Counter(
            "jitgen_kernels",
            "What became of kernels that were not in memory, by tier.",
            ["tier", "outcome"],
            registry=to,
        )
        self._seconds = {
            "load": _histogram("load", "Loading a kernel, by tier.", _LOAD_S, ["tier"], to),
            "fetch": _histogram("fetch", "Fetching an entry, by tier.", _FETCH_S, ["tier"], to),
            "queue": _histogram("queue", "Waiting for a compile in progress.", _QUEUE_S, [], to),
            "compile": _histogram("compile", "Compiling a kernel here.", _COMPILE_S, [], to),
        }
        self._distinct = client.Gauge(
            "jitgen_distinct_kernels",
            "Distinct kernels that were asked for.",
            registry=to,
            multiprocess_mode="max",
        )
        limit = client.Gauge(
            "jitgen_max_kernels",
            "JITGEN_MAX_KERNELS; 0: no limit.",
            registry=to,
            multiprocess_mode="max",
        )
        limit.set(settings.max_kernels)
        info = client.Gauge(
            "jitgen_info",
            "1, with the version of jitgen.",
            ["version"],
            registry=to,
            multiprocess_mode="max",
        )
        info.labels(__version__).set(1)
        self._metrics = [self._kernels, *self._seconds.values(), self._distinct, limit, info]
        self._asked: set[str] = set()
        self._stop = on_event(self._hear)

    def close(self) -> None:
        """Stop listening, and remove the metrics from the registry."""
        self._stop()
        for metric in self._metrics:
            self._registry.unregister(metric)
        self._metrics.clear()
        _installed.pop(id(self._registry), None)

    def _hear(self, event: Event) -> None:
        outcome = _OUTCOMES.get(event.kind)
        if outcome is not None:
            self._kernels.labels(*outcome(event)).inc()
        histogram = self._seconds.get(event.kind)
        if histogram is not None:
            of_tier = histogram.labels(event.tier) if event.kind in _BY_TIER else histogram
            of_tier.observe(event.seconds)
        if event.kind in _WANTED and event.key not in self._asked:
            self._asked.add(event.key)
            self._distinct.set(len(self._asked))


_BY_TIER = frozenset({"load", "fetch"})
_installed: dict[int, Metrics] = {}


def install(registry: CollectorRegistry | None = None) -> Metrics:
    """
    Count and time the events of kernels in this process from now on.

    A second call with the same registry returns the same object.

    Args:
        registry: A registry of prometheus-client; None for its own, which ``start_http_server`` and
            serving engines export.

    Raises:
        ToolchainError: prometheus-client is not installed.
        InputError: `registry` is not a registry of prometheus-client.
    """
    if registry is not None and not hasattr(registry, "register"):
        raise InputError(
            "registry", f"must be a CollectorRegistry, or None (got {type(registry).__name__})"
        )
    key = id(_client().REGISTRY if registry is None else registry)
    if key not in _installed:
        _installed[key] = Metrics(registry)
    return _installed[key]


def _histogram(
    name: str, what: str, buckets: tuple[float, ...], labels: list[str], registry: CollectorRegistry
) -> Histogram:
    found: Histogram = _client().Histogram(
        f"jitgen_{name}_seconds", what, labels, buckets=buckets, registry=registry
    )
    return found


def _client() -> ModuleType:
    try:
        import prometheus_client
    except ImportError as error:
        raise ToolchainError(
            f"metrics need the package prometheus-client ({error}); run: pip install "
            "'jitgen[metrics]'"
        ) from error
    return prometheus_client
