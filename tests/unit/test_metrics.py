# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: what is counted, what it costs without, and the dashboard over them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import generate_latest as exported

import jitgen
from jitgen.errors import ToolchainError
from jitgen.events import Event, EventKind, events
from jitgen.metrics import _OUTCOMES, Metrics, install

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "jitgen.json"


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    made = CollectorRegistry()
    metrics = install(made)
    yield made
    metrics.close()


def emit(kind: str, **fields: object) -> None:
    values = {"kernel": "k", "key": "ab", **fields}
    events.emit(Event(kind=EventKind(kind), **values))  # type: ignore[arg-type]


def test_tiers_and_outcomes(registry: CollectorRegistry) -> None:
    for tier in ("disk", "disk", "base"):
        emit("hit", tier=tier)
    emit("miss")
    emit("compile", seconds=1.5)
    emit("error", detail="refused")
    emit("error", kernel="cache", detail="disk full")
    emit("quarantine", detail="kernel.so does not have its digest")

    def count(tier: str, outcome: str) -> float | None:
        labels = {"tier": tier, "outcome": outcome}
        return registry.get_sample_value("jitgen_kernels_total", labels)

    assert count("disk", "hit") == 2
    assert count("base", "hit") == 1
    assert count("any", "miss") == 1
    assert count("compiler", "compiled") == 1
    assert count("compiler", "failed") == 1
    assert count("disk", "failed") == 1
    assert count("disk", "damaged") == 1
    assert count("memory", "hit") is None


def test_times(registry: CollectorRegistry) -> None:
    emit("compile", seconds=1.5)
    emit("queue", seconds=0.02)
    emit("load", tier="disk", seconds=0.0002)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"jitgen_{name}", labels)

    assert value("compile_seconds_bucket", le="1.0") == 0
    assert value("compile_seconds_bucket", le="2.0") == 1
    assert value("queue_seconds_sum") == pytest.approx(0.02)
    assert value("load_seconds_bucket", tier="disk", le="0.00025") == 1
    assert value("load_seconds_count", tier="base") is None


def test_distinct_kernels(registry: CollectorRegistry) -> None:
    """The number that JITGEN_MAX_KERNELS is about, and how far it is exceeded."""
    for key in ("a", "b", "a"):
        emit("miss", key=key)
    emit("budget", key="b")

    assert registry.get_sample_value("jitgen_distinct_kernels") == 2
    labels = {"tier": "any", "outcome": "beyond_budget"}
    assert registry.get_sample_value("jitgen_kernels_total", labels) == 1


def test_the_limit_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITGEN_MAX_KERNELS", "40")
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.close()
    again = Metrics(registry)  # names are free again

    assert registry.get_sample_value("jitgen_max_kernels") == 40
    assert registry.get_sample_value("jitgen_info", {"version": jitgen.__version__}) == 1
    again.close()


def test_installing_twice_counts_once(registry: CollectorRegistry) -> None:
    assert install(registry) is install(registry)
    emit("miss")

    labels = {"tier": "any", "outcome": "miss"}
    assert registry.get_sample_value("jitgen_kernels_total", labels) == 1


def test_nothing_is_heard_after_closing() -> None:
    registry = CollectorRegistry()
    install(registry).close()
    emit("miss")

    assert exported(registry) == b""


def test_outcomes_are_of_kinds_that_there_are() -> None:
    assert set(_OUTCOMES) <= set(EventKind)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(ToolchainError, match=r"pip install 'jitgen\[metrics\]'"):
        install()


def test_the_client_is_imported_for_who_installs() -> None:
    code = "import sys, jitgen; jitgen.metrics; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


def test_every_metric_of_the_dashboard_exists(registry: CollectorRegistry) -> None:
    """A panel of a metric that was renamed shows nothing, without an error."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    known = {
        family.name + suffix for family in registry.collect() for suffix in suffixes[family.type]
    }
    text = DASHBOARD.read_text(encoding="utf-8")
    named = set(re.findall(r"\bjitgen_[a-z_]+", text))
    outcomes = {outcome(Event(kind=EventKind.HIT, tier="x"))[1] for outcome in _OUTCOMES.values()}
    outcomes |= {"failed", "fetched"}
    selected = re.findall(r'outcome=~?\\"([a-z_|]+)\\"', text)

    assert named <= known
    assert {word for words in selected for word in words.split("|")} <= outcomes
    assert len({panel["id"] for panel in json.loads(text)["panels"]}) == 12
