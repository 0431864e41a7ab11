# SPDX-License-Identifier: Apache-2.0
"""What ``jitgen doctor`` finds: one line of its report."""

from __future__ import annotations

from enum import StrEnum

from jitgen.support.frozen import frozen


class Health(StrEnum):
    """How good a finding is."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@frozen
class Finding:
    """
    One line of the report.

    Attributes:
        section: What it belongs to.
        name: What was looked at.
        value: What was found.
        health: Whether that is good.
        advice: What to do about it; empty where nothing is to be done.
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
    """Return a finding; without `when`, it is ok and there is nothing to advise."""
    if not when:
        health, advice = Health.OK, ""
    return Finding(section=section, name=name, value=value, health=health, advice=advice)
