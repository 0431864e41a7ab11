# SPDX-License-Identifier: Apache-2.0
"""
Who vouches for a compiled kernel: signatures beside an entry, and whose signatures count.

A `Statement` says of one entry, by the digest of its ``meta.json`` (which holds the digests of its
files), who built it and when. It is signed with Ed25519 in a DSSE envelope, by one key or several.
A trust document, signed by a root key, says which keys count, for what time, and what was revoked.
`judge` puts the two together: accepted, or why not.

Signing needs ``pip install 'jitgen[signing]'``; nothing of jitgen imports this room unless a
setting, a command or a tier asks for it.
"""

from __future__ import annotations
