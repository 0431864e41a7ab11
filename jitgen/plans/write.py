# SPDX-License-Identifier: Apache-2.0
"""A plan as the TOML file that `jitgen.plans.load` reads back, with what is as usual left out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from jitgen.plans.plan import Plan
from jitgen.plans.sweep import Sweep


def text(plan: Plan) -> str:
    """Return the text of a file that holds `plan`; its name is the file's."""
    blocks = ["\n".join(_entry(sweep)) for sweep in plan.sweeps]
    return "\n\n".join([f"description = {_value(plan.description)}", *blocks]) + "\n"


def _entry(sweep: Sweep) -> Iterator[str]:
    """Yield the lines of one entry, fields in the order of its problem's."""
    problem = sweep.problem
    specs = dataclasses.fields(problem)
    names = {spec.name for spec in specs}
    yield "[[problems]]"
    yield f"op = {_value(problem.op)}"
    for spec in specs:
        value = getattr(problem, spec.name)
        if spec.name == "m":
            yield f"rows_per_group = {{ min = {sweep.min_rows}, max = {sweep.max_rows} }}"
        elif {"n", "k"} <= names and spec.name in ("n", "k"):
            if spec.name == "n":
                yield f"matrix = {{ n = {problem.n}, k = {problem.k} }}"
        elif value is not None and value != spec.default:
            yield f"{'dtype' if spec.name == 'a_dtype' else spec.name} = {_value(value)}"
    if sweep.is_optional:
        yield "optional = true"


def _value(value: Any) -> str:
    """Return a value in TOML: JSON's strings, integers and booleans are TOML's, too."""
    return json.dumps(str(value) if isinstance(value, StrEnum) else value)
