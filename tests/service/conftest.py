# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the tests of a service at rest."""

from __future__ import annotations

from tests.server.conftest import service

__all__ = ["service"]
