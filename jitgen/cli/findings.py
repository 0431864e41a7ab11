# SPDX-License-Identifier: Apache-2.0
"""A finding of ``jitgen doctor``: one line of its report."""

from __future__ import annotations

from enum import StrEnum

from jitgen.support.frozen import frozen


class Health(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@frozen
class Finding:
    """
    One line of the report of ``jitgen doctor``.

    Attributes:
        section: Section of the report.
        name: What was checked.
        value: What was found.
        health: Whether the value is good.
        advice: What to do; empty if there is nothing to do.
    """

    section: str
    name: str
    value: str
    health: Health = Health.OK
    advice: str = ""


def about(
    section: str,
    name: str,
    value: str,
    health: Health = Health.OK,
    advice: str = "",
    *,
    when: object = True,
) -> Finding:
    """Return a finding; unless `when` is true, it is ok and has no advice."""
    if not when:
        health, advice = Health.OK, ""
    return Finding(section=section, name=name, value=value, health=health, advice=advice)
