# SPDX-License-Identifier: Apache-2.0
"""
Which configs a target can run, why not, and what follows from one that it can.

The compiler accepts configs that overflow shared memory, deadlock or cannot launch, so this is the
only thing between a config and an illegal-address crash. Each target is one file with one class;
its rules are methods that name a code and a reason with the numbers in it. The numbers it derives
feed the template, so that checker and kernel cannot disagree.
"""

from __future__ import annotations

from functools import lru_cache

from jitgen.errors import UnsupportedConfig
from jitgen.model.arch import Arch
from jitgen.model.config import KernelConfig
from jitgen.model.legality.cpu import CpuTarget
from jitgen.model.legality.rules import Refusal, Target, Verdict
from jitgen.model.legality.sm90 import Sm90Target

_TARGETS: dict[Arch, Target] = {Arch.CPU: CpuTarget(), Arch.SM_90A: Sm90Target()}


def target(arch: Arch | str) -> Target:
    """Return the rules of `arch`."""
    return _TARGETS[Arch.parse(arch)]


@lru_cache(maxsize=4096)
def check(config: KernelConfig, arch: Arch | str) -> Verdict:
    """
    Say whether `arch` can run `config`.

    Returns:
        A verdict that is true or false, with the first rule that was broken, its reason and the
        nearest legal config, or with the numbers that the template needs.
    """
    rules = target(arch)
    try:
        derived = rules.derive(config)
    except Refusal as refusal:
        return Verdict(
            ok=False, code=refusal.code, reason=refusal.reason, config=config, target=rules
        )
    return Verdict(ok=True, derived=derived, config=config, target=rules)


def require(config: KernelConfig, arch: Arch | str) -> Verdict:
    """
    Return the verdict on a legal config.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`; the message holds the reason and a legal
            neighbour.
    """
    verdict = check(config, arch)
    if verdict.ok:
        return verdict
    proposal = verdict.proposal
    advice = f"; the nearest legal config is {proposal.name(arch)}" if proposal else ""
    raise UnsupportedConfig(
        f"{config.name(arch)} is refused: {verdict.code}: {verdict.reason}{advice}",
        code=verdict.code,
        proposal=proposal,
    )


__all__ = ["Target", "Verdict", "check", "require", "target"]
