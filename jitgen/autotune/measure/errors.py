# SPDX-License-Identifier: Apache-2.0
"""Why something was not timed."""

from __future__ import annotations

from jitgen.errors import JitgenError


class WrongResult(JitgenError):
    """What was to be timed computes the wrong thing, so its time means nothing."""


class NoDevice(JitgenError):
    """A measurement needs a device that is not here."""
