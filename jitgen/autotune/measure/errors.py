# SPDX-License-Identifier: Apache-2.0
"""Errors of measurements that cannot be made."""

from __future__ import annotations

from jitgen.errors import JitgenError


class WrongResult(JitgenError):
    """A kernel to be timed computes wrong values, so its time means nothing."""


class NoDevice(JitgenError):
    """A measurement needs a device that this machine does not have."""
