# SPDX-License-Identifier: Apache-2.0
"""
Remote backends: object stores, caches over HTTP, and the compile service.

This package is imported only if a remote tier is set or a command names one. Its requirements are
installed by ``pip install 'jitgen[remote]'``.
"""

from __future__ import annotations
