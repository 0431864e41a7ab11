# SPDX-License-Identifier: Apache-2.0
"""
Metrics of the service, for Prometheus.

Each service has its own registry, so that several in one process, as in tests, count separately.
Names begin with ``jitgen_service_``, unlike those of the library (`jitgen.metrics`). Labels have
few values: names of routes, targets and toolchains, never a key.
"""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST

_FAST = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_SLOW = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """The Prometheus metrics of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "jitgen_service_requests", "Requests", ("resource", "status"), registry=self.registry
        )
        self.latency = Histogram(
            "jitgen_service_request_seconds",
            "From the first byte of a request to the last of its answer",
            ("resource",),
            buckets=_FAST,
            registry=self.registry,
        )
        self.entries = Counter(
            "jitgen_service_entries",
            "Entries asked for, by where they came from",
            ("source",),
            registry=self.registry,
        )
        self.sent = Counter("jitgen_service_sent_bytes", "Bytes of entries", registry=self.registry)
        self.compiles = Counter(
            "jitgen_service_compiles",
            "Compiles by outcome",
            ("arch", "toolchain", "outcome"),
            registry=self.registry,
        )
        self.compile_s = Histogram(
            "jitgen_service_compile_seconds",
            "What the compiler took",
            ("arch",),
            buckets=_SLOW,
            registry=self.registry,
        )
        self.queue_s = Histogram(
            "jitgen_service_queue_seconds",
            "From asking to the beginning of a compile",
            buckets=(0.01, 0.1, *_SLOW),
            registry=self.registry,
        )
        self.refused = Counter(
            "jitgen_service_refused", "Refusals by code", ("code",), registry=self.registry
        )
        self.queued = Gauge("jitgen_service_queued", "Kernels that wait", registry=self.registry)
        self.compiling = Gauge(
            "jitgen_service_compiling", "Kernels that are compiled", registry=self.registry
        )
        self.lru_bytes = Gauge(
            "jitgen_service_hot_bytes", "Packed entries in memory", registry=self.registry
        )
        self.joined = Counter(
            "jitgen_service_joined",
            "Requests that joined a compile under way",
            registry=self.registry,
        )
        self.leases = Counter(
            "jitgen_service_leases", "Leases among replicas", ("outcome",), registry=self.registry
        )
        self.signing = Gauge(
            "jitgen_service_signing",
            "1 for how the signing key stands in the trust document",
            ("state",),
            registry=self.registry,
        )
        self.signing_ends = Gauge(
            "jitgen_service_signing_ends_timestamp_seconds",
            "When what the key signs counts no longer; 0: now, or it is not known",
            registry=self.registry,
        )
        self.connections = Gauge(
            "jitgen_service_connections",
            "Connections, by whether a request is under way",
            ("state",),
            registry=self.registry,
        )
        self.ended = Counter(
            "jitgen_service_connections_ended",
            "Connections that had to make room, or for which there was none",
            ("reason",),
            registry=self.registry,
        )
        self.streams = Gauge(
            "jitgen_service_streams", "Event streams under way", registry=self.registry
        )
        self.restarts = Gauge(
            "jitgen_service_pool_restarts",
            "How often a toolchain's supervisor ended",
            ("toolchain",),
            registry=self.registry,
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)
