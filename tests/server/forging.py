# SPDX-License-Identifier: Apache-2.0
"""Well-formed entries whose library was not compiled."""

from __future__ import annotations

from jitgen.cache import Entry, Meta
from jitgen.config import Arch, Config
from jitgen.remote import wire
from jitgen.runtime.spec import KernelSpec, digest, spec_of
from jitgen.signing import dsse
from jitgen.signing.keys import PrivateKey
from jitgen.signing.statement import PAYLOAD_TYPE, Statement


def forged(config: Config, *keys: PrivateKey) -> Entry:
    """Return an entry of a kernel for the CPU that holds no kernel, signed by `keys`."""
    spec = spec_of(config, Arch.CPU)
    files = {"kernel.py": b"# nothing\n", "kernel.so": b"malicious"}
    entry = Entry.of(meta_of(spec, spec.document), files)
    return Entry.of(entry.meta, entry.files, signed(entry.meta, *keys))


def meta_of(spec: KernelSpec, document: dict[str, object]) -> Meta:
    """Return the record, without files, of a kernel that has this key document."""
    return Meta(
        key=digest(document),
        key_document=document,
        name=spec.name,
        arch=str(spec.arch),
        config=spec.config.to_json(),
        symbol=spec.name,
        library="kernel.so",
        files={},
        created="2026-01-01T00:00:00+00:00",
        compile_s=1.0,
        link_s=0.0,
        host_isa=("x86-64",),
        jitgen="0",
    )


def signed(meta: Meta, *keys: PrivateKey) -> bytes:
    """Return the ``signatures.json`` of a record; nothing for no keys."""
    if not keys:
        return b""
    statement = Statement.of(meta.encode(), "another builder")
    return dsse.encode([dsse.seal(PAYLOAD_TYPE, statement.encode(), *keys)])


def packed(entry: Entry) -> bytes:
    """Return an entry as a client sends it."""
    return wire.pack(entry.meta.encode(), entry.files, entry.signatures)
