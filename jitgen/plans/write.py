# SPDX-License-Identifier: Apache-2.0
"""Turns a plan into the text that `jitgen.plans.load` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum

from jitgen.errors import PlanError
from jitgen.plans.plan import MAX_BYTES, Plan
from jitgen.plans.read import CALLS, EARLY, MAX_SWEEPS, OP, OPTIONAL, ROWS, USUAL_OP, Key, keys_of
from jitgen.plans.sweep import Sweep


def text(plan: Plan) -> str:
    """
    Return the text of a TOML file that holds `plan`, an entry for each of its sweeps, without
    values that are defaults. The file's name is the name of the plan.

    Raises:
        PlanError: It is no plan, or has more sweeps, or makes more text, than `load` takes.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"text takes a Plan, such as jitgen.plans.load gives (got {plan!r})")
    if len(plan.sweeps) > MAX_SWEEPS:
        raise PlanError(
            f"the plan {plan.name} has {len(plan.sweeps):,} problems, and {MAX_SWEEPS:,} are the "
            "most that a plan may have; leave out what is rarely called"
        )
    whole = "\n".join(_lines(plan))
    if len(whole.encode()) > MAX_BYTES:
        raise PlanError(
            f"the plan {plan.name} has {len(whole.encode()):,} bytes, and {MAX_BYTES:,} are the "
            "most that a plan may have; leave out what is rarely called"
        )
    return whole


def _lines(plan: Plan) -> Iterator[str]:
    yield f"description = {_quoted(plan.description)}"
    for sweep in plan.sweeps:
        yield "\n[[problems]]"
        op = sweep.problem.op
        if op != USUAL_OP:
            yield f"{OP} = {_value(op)}"
        for name, key in keys_of(op).items():
            if (value := _of_key(name, key, sweep)) is not None:
                yield f"{name} = {value}"
        if sweep.is_optional:
            yield f"{OPTIONAL} = true"
        if sweep.calls:
            yield f"{CALLS} = {sweep.calls}"
        if sweep.is_early:
            yield f"{EARLY} = true"
    yield ""


def _of_key(name: str, key: Key, sweep: Sweep) -> str | None:
    """Return the text of a key's value; None if the key may be left out."""
    if name == ROWS:
        if sweep.min_rows == sweep.max_rows:
            return str(sweep.min_rows)
        return f"{{ min = {sweep.min_rows}, max = {sweep.max_rows} }}"
    values = tuple(getattr(sweep.problem, field) for field in key.fields)
    if values in (key.default, (None,)):  # where it follows from others, and is no text
        return None
    if len(values) == 1:
        return _value(values[0])
    pairs = zip(key.fields, values, strict=True)
    return f"{{ {', '.join(f'{field} = {_value(value)}' for field, value in pairs)} }}"


def _value(value: object) -> str:
    if isinstance(value, (str, StrEnum)):
        return _quoted(str(value))
    return json.dumps(value)  # integers and flags are alike in both


def _quoted(words: str) -> str:
    """Return `words` as TOML text: as in JSON, with one more character escaped."""
    return json.dumps(words, ensure_ascii=False).replace("\x7f", "\\u007f")
