# SPDX-License-Identifier: Apache-2.0
"""
Mixtral: ``experts.E.w1.weight`` are the gates (I, H), ``w3`` the ups, ``w2`` (H, I) leads back.

The prefix ends with ``block_sparse_moe``.
"""

from __future__ import annotations

from jitgen.layer.checkpoints.matrices import plain_family

FAMILY = plain_family(("w1", "w3"), "w2")
