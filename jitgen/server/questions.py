# SPDX-License-Identifier: Apache-2.0
"""
Questions of the service to a supervisor, which runs in a toolchain's own environment.

`jitgen.server.pools.Pool.ask` sends one, and `jitgen.server.supervisor.ANSWERS` has the function
that answers it. The values are part of the protocol between processes of different versions.
"""

from __future__ import annotations

from enum import StrEnum


class Question(StrEnum):
    """A question; its value is the word that is sent."""

    EXAMINE = "examine"
    """Examine a config on a target: `jitgen.server.supervisor.examine`."""

    EXPAND = "expand"
    """Which kernels a plan can ask for: `jitgen.server.supervisor.expand`."""
