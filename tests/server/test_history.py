# SPDX-License-Identifier: Apache-2.0
"""The last day of a service's counters, and what is drawn of it."""

from __future__ import annotations

import re

from jitgen.server.history import LOOK_S, SPAN_S, SPANS, History
from jitgen.server.metrics import Metrics
from jitgen.server.pictures import of_day

DAY = 1_790_000_000.0


def test_each_span_has_what_was_counted_in_it() -> None:
    metrics = Metrics()
    metrics.entries.labels("memory").inc(100)  # before
    history = History(metrics, DAY)
    metrics.entries.labels("memory").inc(3)
    metrics.entries.labels("missing").inc()
    metrics.compiles.labels("sm_90a", "default", "compiled").inc(2)
    metrics.compile_s.labels("sm_90a").observe(1.5)
    metrics.queue_s.observe(0.5)
    metrics.queue_s.observe(1.5)
    history.look(DAY + LOOK_S, 7)
    metrics.entries.labels("memory").inc(5)
    history.look(DAY + SPAN_S, 2)
    *before, first, second = history.spans(DAY + SPAN_S)

    assert len(before) == SPANS - 2
    assert not any(span.grown for span in before)
    assert first.of("source") == {"memory": 3.0, "missing": 1.0}
    assert first.of("arch") == {"sm_90a": 1.5}
    assert first.of("toolchain") == {"default": 2.0}
    assert (first.mean("queue"), first.queued) == (1.0, 7)
    assert second.of("source")["memory"] == 5.0
    assert second.queued == 2
    assert second.at - first.at == SPAN_S


def test_it_looks_seldom_unless_it_is_asked() -> None:
    metrics = Metrics()
    history = History(metrics, DAY)
    metrics.entries.labels("disk").inc()
    history.look(DAY + 1, 0)
    assert not history.spans(DAY)[-1].grown

    history.look(DAY + 1, 0, is_asked=True)
    assert history.spans(DAY)[-1].of("source") == {"disk": 1.0}


def test_it_forgets_what_is_older_than_a_day() -> None:
    metrics = Metrics()
    history = History(metrics, DAY)
    for span in range(3 * SPANS):
        metrics.entries.labels("disk").inc()
        history.look(DAY + span * SPAN_S, 0)

    assert len(history._grown) == SPANS
    assert len(history._queued) == SPANS


def test_pictures_say_what_they_show() -> None:
    metrics = Metrics()
    history = History(metrics, DAY)
    metrics.entries.labels("memory").inc(9)
    metrics.entries.labels("missing").inc(1)
    metrics.compiles.labels("<b>", "<i>", "compiled").inc()
    metrics.compile_s.labels("<b>").observe(2.0)
    history.look(DAY, 0, is_asked=True)
    pictures = {each.title: each for each in of_day(history.spans(DAY), ())}
    sources = pictures["Entries asked for, by source"]

    assert sources.note == "90.0 % of 10 were here."
    tall = [float(x) for x in re.findall(r'height="([\d.]+)" class="c\d"', sources.drawing)]
    assert sorted(tall) == [10.0, 90.0]
    assert "9 memory, 0 disk" in sources.drawing
    assert "&lt;b&gt;" in pictures["Seconds of the compiler by target"].drawing
    assert "<b>" not in "".join(each.drawing for each in pictures.values())
    assert pictures["The slowest of the recent compiles"].drawing == '<p class="note">None.</p>'


def test_a_service_that_did_nothing_has_pictures() -> None:
    history = History(Metrics(), DAY)

    notes = [each.note for each in of_day(history.spans(DAY), ())]
    assert notes[0] == "nothing was asked."
    assert notes[1] == "none; the longest queue that was seen: 0."
