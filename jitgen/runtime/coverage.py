# SPDX-License-Identifier: Apache-2.0
"""
Records which plans were prewarmed, and for which devices, for processes that may not compile.

A plan's kernels depend on the devices that they are chosen for, on settings, and on the release of
jitgen. When all kernels of a plan are in a store, a small record with these conditions is written
beside them. A process that turns compiling off reads the records, including those of its bases, and
warns of plans that were not prewarmed for its device. So the warning comes at the start, and not
only at the first call whose kernel is missing.

A record is no guarantee, because entries may have been removed later. Without records, for example
if kernels came from a remote cache, there is no warning.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from jitgen._version import __version__
from jitgen.config import Arch, BLayout
from jitgen.errors import CacheError
from jitgen.events import warn_once
from jitgen.selection import device as tuning
from jitgen.settings import settings
from jitgen.support.documents import canonical_json
from jitgen.support.frozen import frozen
from jitgen.targets import devices

if TYPE_CHECKING:
    from jitgen.cache import Store
    from jitgen.plans.plan import Plan

SCHEMA = 1
_KIND = "plans"
_PLANS = Path(__file__).resolve().parents[1] / "plans"
_SETTINGS = {
    f"JITGEN_{name.upper()}": name
    for name in ("select", "min_latency", "numerics", "max_workspace")
}
_MOST_TOLD = 3
_LONGEST_NAME = 40
_DIGITS = 12


class BadCoverage(ValueError):
    """A document is not a record of prewarmed plans."""


@frozen
class Coverage:
    """
    A plan of which all kernels were in a store, for a target and some of its devices.

    Attributes:
        plan: Name of the plan.
        problems: Digest of its problems: see `jitgen.plans.Plan.digest`.
        arch: The target.
        devices: Names of the devices that kernels were chosen for.
        conditions: The other conditions of the choices: jitgen's version, the generation of the
            target's kernels, and settings.
    """

    plan: str
    problems: str
    arch: Arch
    devices: tuple[str, ...]
    conditions: Mapping[str, str] = field(hash=False)

    @classmethod
    def of(cls, plan: Plan, arch: Arch, names: Iterable[str]) -> Self:
        """Return the record of a plan that was prewarmed now, for the devices called `names`."""
        return cls(
            plan=plan.name,
            problems=plan.digest,
            arch=arch,
            devices=tuple(names),
            conditions=conditions_of(plan, arch),
        )

    @classmethod
    def from_json(cls, document: object) -> Self:
        """
        Return the record that `to_json` wrote.

        Raises:
            BadCoverage: `document` is not a record of this schema.
        """
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadCoverage(f"it is no record of schema {SCHEMA}")
        named = [document.get(name) for name in ("plan", "problems", "arch")]
        names, conditions = document.get("devices"), document.get("conditions")
        if not isinstance(names, list) or not isinstance(conditions, dict):
            raise BadCoverage("it has no devices or no conditions")
        if not all(isinstance(text, str) for text in (*named, *names, *conditions.values())):
            raise BadCoverage("it holds something else than text")
        plan, problems, arch = named
        if arch not in set(map(str, Arch)):
            raise BadCoverage("its target is not known")
        return cls(
            plan=str(plan),
            problems=str(problems),
            arch=Arch.parse(str(arch)),
            devices=tuple(names),
            conditions=conditions,
        )

    def to_json(self) -> dict[str, object]:
        """Return the record as JSON values."""
        return {
            "schema": SCHEMA,
            "plan": self.plan,
            "problems": self.problems,
            "arch": str(self.arch),
            "devices": list(self.devices),
            "conditions": dict(self.conditions),
        }

    @property
    def file(self) -> str:
        """The name of the record's file: equal records have equal names."""
        digest = hashlib.sha256(canonical_json(self.to_json()).encode("ascii")).hexdigest()
        name = tuning.slug(self.plan)[:_LONGEST_NAME] or "plan"
        return f"{name}-{digest[:_DIGITS]}"


def _settings_of(plan: Plan) -> Iterator[str]:
    """Yield the variables that the choices for the plan's problems depend on."""
    problems = [each.problem for each in plan.sweeps]
    if any(each.op == "grouped_gemm" for each in problems):
        yield "JITGEN_SELECT"
    for name in ("min_latency", "numerics"):  # problems that leave the field open
        if any(getattr(each, name, "it has none") is None for each in problems):
            yield f"JITGEN_{name.upper()}"
    layouts = {getattr(each, "b_layout", BLayout.PLAIN) for each in problems}
    if any(layout.is_prepacked for layout in layouts):
        yield "JITGEN_MAX_WORKSPACE"


def conditions_of(plan: Plan, arch: Arch) -> dict[str, str]:
    """Return the present conditions of the choices for a plan, besides devices and measurements."""
    return now(arch, ["jitgen", "kernels", *_settings_of(plan)])


def now(arch: Arch, names: Iterable[str]) -> dict[str, str]:
    """Return the present values of the conditions called `names`; others are left out."""
    found = {}
    for name in names:
        if name == "jitgen":
            found[name] = __version__
        elif name == "kernels":
            found[name] = canonical_json(tuning.generations(arch))
        elif name in _SETTINGS:
            found[name] = _text(getattr(settings, _SETTINGS[name]))
    return found


def _text(value: object) -> str:
    """Return a setting in the form of its variable."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def keep(store: Store, found: Coverage) -> None:
    """
    Store a record, if the store may be written and the target is not the cpu. A failure gives only
    a warning, because the kernels are stored anyway.
    """
    own, *_ = store.prewarmed
    if store.mode != "rw" or not found.arch.is_gpu:
        return
    try:
        if own.read(str(found.arch), _KIND, found.file) != found.to_json():
            own.write(str(found.arch), _KIND, found.file, found.to_json())
    except CacheError as error:
        warn_once("coverage", "what was prewarmed is not noted: %s", error)


def kept(store: Store, arch: Arch) -> list[Coverage]:
    """Return the records of a target in a store and its bases; damaged ones are left out."""
    found = []
    for place in store.prewarmed:
        for name in place.names(str(arch), _KIND):
            document = place.read(str(arch), _KIND, name)
            try:
                found.append(Coverage.from_json(document))
            except BadCoverage:  # of another version of jitgen, say
                continue
    return [each for each in found if each.arch is arch]


def tell(store: Store) -> bool:
    """
    Warn, once, if a plan was prewarmed, but not for the device and settings of this process. Does
    not initialise a GPU, because the process may fork later.

    Returns:
        Whether the device is known; if not, call this again later.
    """
    place = here()
    if place is None:
        return False
    arch, names = place
    groups = _by_plan(store, arch)
    found = [(group, _lack(group, arch, names)) for group in groups]
    served = {group[0].plan for group, lack in found if lack is None}
    lacks = [
        lack
        for group, lack in found
        if lack is not None and not (group[0].plan in served and _is_earlier(group))
    ]
    if lacks:
        device = names[0] if len(names) == 1 else f"{names[1]} (chosen for as {names[0]})"
        plans = dict.fromkeys(argument(plan) for plan, _ in lacks)
        told = "; ".join(f"{plan} {why}" for plan, why in lacks[:_MOST_TOLD])
        more = len(lacks) - _MOST_TOLD
        warn_once(
            f"coverage {device}",
            "compiling is off, and calls on %s may choose kernels that were not prewarmed: %s%s; "
            "run: jitgen prewarm %s --arch %s --device '%s'",
            device,
            told,
            f"; and {more} more" if more > 0 else "",
            " ".join(plans),
            arch,
            names[0],
        )
    return True


def standing(store: Store, arch: Arch, names: tuple[str, ...]) -> dict[str, str]:
    """
    Return for each prewarmed plan why it is not for the device with these `names` and the present
    settings; an empty text if it is.
    """
    found: dict[str, str] = {}
    for group in _by_plan(store, arch):
        lack = _lack(group, arch, names)
        plan = group[0].plan
        if lack is None or found.get(plan) != "":
            found[plan] = "" if lack is None else lack[1]
    return found


def here() -> tuple[Arch, tuple[str, ...]] | None:
    """
    Return this process's target and device names: the name that kernels are chosen for, and the
    device's own name if it differs. None for a GPU of no target, or while CUDA is not initialised
    and JITGEN_DEVICE is not set.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found = Arch.of_capability(*torch.cuda.get_device_capability())
        if found is None:
            return None
        chosen, asked = tuning.chosen_for(found)
        own = asked or tuning.device_name(found)
        return found, tuple(dict.fromkeys((chosen.name, own)))
    if not settings.device:
        return None
    arch = devices.arch_of(settings.device)
    return arch, (devices.find(arch, settings.device).name,)


def _by_plan(store: Store, arch: Arch) -> list[list[Coverage]]:
    found: dict[tuple[str, str], list[Coverage]] = {}
    for each in kept(store, arch):
        found.setdefault((each.plan, each.problems), []).append(each)
    return list(found.values())


def _lack(records: list[Coverage], arch: Arch, names: tuple[str, ...]) -> tuple[str, str] | None:
    """
    Return a plan's name and why its prewarms are not for this process; None if one of them is.
    """
    plan = records[0].plan
    of_device = [each for each in records if set(names) & set(each.devices)]
    differences = [_difference(each, arch) for each in of_device]
    if "" in differences:
        return None
    if differences:
        return plan, f"was prewarmed with {differences[-1]}"
    covered = dict.fromkeys(name for each in records for name in each.devices)
    return plan, f"was prewarmed for {', '.join(covered)}"


def _is_earlier(records: list[Coverage]) -> bool:
    """Return whether only other versions of jitgen prewarmed a plan, which may differ."""
    return all(each.conditions.get("jitgen") != __version__ for each in records)


def _difference(record: Coverage, arch: Arch) -> str:
    """Return a text with the conditions of a prewarm that differ here; empty if none do."""
    values = now(arch, record.conditions)
    return ", ".join(
        f"{name} {record.conditions[name]}, here {value}"
        for name, value in values.items()
        if record.conditions[name] != value
    )


def argument(plan: str) -> str:
    """
    Return the argument that names a plan on a command line: a shipped plan's name, else its file.
    """
    is_shipped = plan in {path.stem for path in _PLANS.glob("*.toml")}
    return plan if is_shipped else shlex.quote(f"{plan}.toml")
