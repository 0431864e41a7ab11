# SPDX-License-Identifier: Apache-2.0
"""Why a kernel was chosen, in one sentence: what was measured, or what the model predicts."""

from __future__ import annotations

from jitgen.config import Arch
from jitgen.targets.protocol import Candidate
from jitgen.tuning.known import Measured, Source


def comparison(best: Candidate, first: Candidate, measured: Measured, arch: Arch) -> str:
    """
    Return the reason where something was measured: the time, and how far ahead that is.

    Args:
        best: What was chosen.
        first: What the model would choose.
        measured: What decided.
        arch: The target.
    """
    record, name = measured.record, best.config.name(arch)
    time = record.times_us[name]
    took = f"{shape(best)} took {time:.1f} us{measured.note}"
    text = f"{took} on {measured.device} on {record.date[:10]}"
    if measured.source is Source.SHIPPED:
        text += " (shipped table)"
    if first.config != best.config:
        other = record.times_us.get(first.config.name(arch))
        if other is None:
            return f"{text}; the model's choice, {shape(first)}, was not measured"
        ahead = (other / time - 1) * 100
        return (
            f"{text}, {ahead:.1f} % ahead of the model's choice, {shape(first)}, at {other:.1f} us"
        )
    text += ", and is the model's choice"
    fastest = min(record.times_us, key=record.times_us.__getitem__)
    if name in {record.winner, fastest}:
        return f"{text} too"
    behind = (time / record.times_us[fastest] - 1) * 100
    return f"{text}; {behind:.1f} % behind the fastest, too little to hold for other rows"


def prediction(candidates: tuple[Candidate, ...], doubt: str) -> str:
    """
    Return the reason where the model decides.

    Args:
        candidates: The best first.
        doubt: What the model was not fitted to; empty if it was.
    """
    best, *others = candidates
    text = (
        f"{shape(best)} is predicted at {best.cost:.1f} us, limited by {best.limiter}: "
        f"{best.waves} wave{'s' * (best.waves != 1)}, {best.padding_ratio:.2f}x the work needed"
    )
    if others:
        text += f"; next is {shape(others[0])} at {others[0].cost:.1f} us"
    return f"{text}; an estimate: {doubt}" if doubt else text


def shape(candidate: Candidate) -> str:
    """Return what tells a candidate from the others."""
    return str(candidate.config.short)
