# SPDX-License-Identifier: Apache-2.0
"""
Legality: which configs and sizes a target can run, why it cannot run others, and the numbers
derived from a legal config.

The compiler accepts configs that overflow shared memory, deadlock or cannot launch, so only these
checks prevent crashes. Each target has its own rules: methods that give a code, and a reason with
numbers. The template uses the same derived numbers, so check and kernel always agree.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from jitgen.config import Arch, Config
from jitgen.config.plugins import TARGETS, lacking
from jitgen.config.problem import Problem
from jitgen.errors import ConfigError, InputError, UnsupportedConfig
from jitgen.support.moved import RENAMED, take_old_methods
from jitgen.targets.protocol import AnyRules, Derived, HasFamilies, Refusal, Rules, Target


class Verdict(NamedTuple):
    """
    Whether a target can run a config, and why not; true when the config is legal.

    Attributes:
        ok: Whether the target can run the config.
        code: The first rule that was broken, for example ``E_REGS``; empty when legal.
        reason: The broken rule with its numbers; empty when legal.
        derived: The numbers that the template needs besides the config; None if refused.
    """

    ok: bool
    config: Config
    rules: AnyRules | None
    code: str = ""
    reason: str = ""
    derived: Derived | None = None

    def __bool__(self) -> bool:
        return self.ok

    @property
    def numbers(self) -> dict[str, Any]:
        """The derived numbers of a legal config, by name."""
        return {} if self.derived is None else dataclasses.asdict(self.derived)

    @property
    def proposal(self) -> Config | None:
        """
        The nearest legal config, searched at the first access; None if the config is legal, or
        there is none.
        """
        return None if self.ok or self.rules is None else self.rules.nearest(self.config)


def target(arch: Arch | str) -> Target:
    """Return the target `arch`."""
    return TARGETS.get(Arch.parse(arch))


def rules(arch: Arch | str, op: str) -> AnyRules:
    """
    Return the rules of `arch` for operation `op`.

    Raises:
        UnsupportedConfig: The target has no kernels for the operation.
        ConfigError: Its rules lack something of `jitgen.targets.protocol.Rules`.
    """
    found = target(arch)
    if op not in found.operations:
        have = ", ".join(found.operations)
        raise UnsupportedConfig(
            f"{arch} has no kernel for {op}; it has some for: {have}", code="E_OP"
        )
    return _rules_of(found, op)


@lru_cache(maxsize=256)
def _rules_of(found: Target, op: str) -> AnyRules:
    """Return a target's rules for an operation, which are checked once."""
    said = found.rules(op)
    if not RENAMED.keys().isdisjoint(vars(type(said))):
        take_old_methods(type(said))
    if missing := lacking(said, Rules):
        raise ConfigError(
            f"what {found.name} says of {op} is no jitgen.targets.protocol.Rules: it lacks "
            f"{', '.join(missing)}"
        )
    return said


@lru_cache(maxsize=256)
def _has_families(kind: type[AnyRules]) -> bool:
    """Return whether rules are a `HasFamilies`, which `isinstance` takes long to say."""
    return issubclass(kind, HasFamilies)


def rules_for(problem: Problem, arch: Arch) -> AnyRules:
    """
    Return the rules of `arch` for the kernels of `problem`: if an operation has families of
    kernels, those of the family.

    Raises:
        UnsupportedConfig: It has no kernels for the operation, or none for such sizes, with the
            code ``E_SIZE``.
    """
    said = rules(arch, problem.op)
    if _has_families(type(said)):
        said = said.family_of(problem)  # type: ignore[attr-defined]  # it has been looked for
    try:
        said.check_sizes(problem)
    except Refusal as refusal:
        raise UnsupportedConfig(
            f"{problem.slug}: a problem {refusal.reason}", code="E_SIZE"
        ) from None
    return said


def check(config: Config | str, arch: Arch | str | None = None) -> Verdict:
    """
    Say whether `arch` can run `config`.

    Args:
        config: A config, or a kernel's name, which may include the target.
        arch: The target; None: that of the name.

    Returns:
        A verdict that is true or false, with the first rule that was broken, its reason and the
        nearest legal config, or with the numbers that the template needs.

    Raises:
        ConfigError: A name or target is not known.
        InputError: `config` is neither a config nor a name, is the name of a kernel for another
            target, or has no target.
    """
    config, arch = named(config, arch)
    if arch is None:
        raise InputError("arch", f"must be one of {', '.join(Arch)} (got None)")
    return _check(config, Arch.parse(arch))


@lru_cache(maxsize=4096)
def _check(config: Config, arch: Arch) -> Verdict:
    try:
        found = rules(arch, config.op)
    except UnsupportedConfig as error:
        return Verdict(ok=False, code=error.code, reason=str(error), config=config, rules=None)
    try:
        derived = found.derive(config)
    except Refusal as refusal:
        return Verdict(
            ok=False, code=refusal.code, reason=refusal.reason, config=config, rules=found
        )
    return Verdict(ok=True, derived=derived, config=config, rules=found)


def require(config: Config, arch: Arch | str) -> Verdict:
    """
    Return the verdict on a legal config.

    Raises:
        UnsupportedConfig: `arch` cannot run `config`; the message has the reason and a legal
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


def named(config: Config | str, arch: Arch | str | None) -> tuple[Config, Arch | str | None]:
    """
    Return `config`, or the config of a name, with its target: `arch`, else that of the name.

    Raises:
        ConfigError: The text is not a kernel name.
        InputError: `config` is neither a config nor a name, or is the name of a kernel for another
            target than `arch`.
    """
    if isinstance(config, Config):
        return config, arch
    if not isinstance(config, str):
        raise InputError(
            "config", f"must be a config or a kernel's name (got {type(config).__name__})"
        )
    found, own = Config.parse(config)
    if arch is not None and Arch.parse(arch) is not own:
        raise InputError("config", f"is the name of a kernel for {own}, and arch says {arch}")
    return found, own


class Sizes(Protocol):
    """
    Sizes of a call: a problem, or an object with the same attributes, for `Rules.check_sizes`.
    """

    @property
    def op(self) -> str:
        """Name of the operation."""
        ...


def size_refusal(sizes: Sizes, arch: Arch) -> str:
    """Return why kernels of `arch` do not support `sizes`; empty if they do."""
    try:
        rules(arch, sizes.op).check_sizes(sizes)
    except Refusal as refusal:
        return refusal.reason
    return ""


__all__ = [
    "Verdict",
    "check",
    "named",
    "require",
    "rules",
    "rules_for",
    "size_refusal",
    "target",
]
