# SPDX-License-Identifier: Apache-2.0
"""Why a model chose: the sentence that a choice gives where nothing measured decided."""

from __future__ import annotations

from jitgen.targets.protocol import Candidate


def prediction(candidates: tuple[Candidate, ...], doubt: str) -> str:
    """
    Return the reason where the model decides, for the best of `candidates`, which comes first;
    `doubt` is what the model was not fitted to.
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
