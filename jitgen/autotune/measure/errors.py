# SPDX-License-Identifier: Apache-2.0
"""Why something was not timed."""

from __future__ import annotations

from jitgen.errors import JitgenError


class WrongResult(JitgenError):
    """A kernel to be timed computes wrong values, so its time means nothing."""


class NoDevice(JitgenError):
    """A measurement needs a device that is not here."""
