# SPDX-License-Identifier: Apache-2.0
"""Small layers for the tests of `jitgen bench layer`."""

from __future__ import annotations

from jitgen.bench.layer.cases import Case


def small(tokens: int, experts: int = 4) -> Case:
    return Case(experts=experts, tokens=tokens, hidden=256, intermediate=128, top_k=2)


def routed(tokens: int) -> Case:
    """Return a layer of 16 experts in eight groups, of which a quarter are here."""
    return Case(experts=4, tokens=tokens, hidden=256, intermediate=128, top_k=2, of=16)
