# SPDX-License-Identifier: Apache-2.0
"""
Signatures of compiled kernels, and the trust document that says which signatures are valid.

A `Statement` names the builder of one entry and the time, and identifies the entry by the digest of
its ``meta.json``, which holds the digests of its files. It is signed with Ed25519 in a DSSE
envelope, by one key or several. A trust document, signed by a root key, lists the valid keys, their
periods, and revocations. `judge` decides whether an entry is accepted by both, or says why not.

Signing needs ``pip install 'jitgen[signing]'``. This package is imported only if a setting, a
command or a tier needs it.
"""

from __future__ import annotations
