# SPDX-License-Identifier: Apache-2.0
"""
Kernels from elsewhere: object stores, other caches over HTTP, and the compile service.

Nothing of jitgen imports this room unless a remote tier is set, or a command names one. What it
needs comes with ``pip install 'jitgen[remote]'``.
"""

from __future__ import annotations
