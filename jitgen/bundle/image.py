# SPDX-License-Identifier: Apache-2.0
"""
A bundle as an OCI image layout: its files, how they are written and read.

::

    oci-layout             the version of the layout
    index.json             refers to the manifest
    blobs/sha256/<digest>  manifest, config, layer

Sources: OCI image specification 1.1, image-layout, manifest, config and annotations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from jitgen._version import __version__
from jitgen.bundle import archive, layer
from jitgen.cache.folder import Damaged
from jitgen.errors import JitgenError
from jitgen.remote import wire
from jitgen.remote.wire import Packed
from jitgen.runtime.coverage import Coverage
from jitgen.support.documents import BadDocument, canonical_json, parse_json, read_bounded
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

MAX_BYTES = 2**28
"""
Largest size of a bundle, as a file and as an unpacked layer: some 2,000 kernels. Both are in
memory.
"""

_MAX_DOCUMENT_BYTES = 2**20
_OCI = "application/vnd.oci.image"
_INDEX, _MANIFEST = f"{_OCI}.index.v1+json", f"{_OCI}.manifest.v1+json"
_CONFIG, _LAYER = f"{_OCI}.config.v1+json", f"{_OCI}.layer.v1.tar+zstd"
_DIGEST = "sha256:"

PLANS, ARCHS, DEVICES = "vnd.jitgen.plans", "vnd.jitgen.archs", "vnd.jitgen.devices"
KERNELS, KEYS, TOOLCHAIN = "vnd.jitgen.kernels", "vnd.jitgen.keys", "vnd.jitgen.toolchain"
CREATED = "org.opencontainers.image.created"
VERSION = "org.opencontainers.image.version"
TITLE = "org.opencontainers.image.title"
_REF = "org.opencontainers.image.ref.name"
_PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}


class BundleError(JitgenError):
    """A bundle cannot be made, read or imported."""


@frozen
class Bundle:
    """
    A bundle that was read; all its digests are right.

    Attributes:
        digest: Digest of its manifest, ``sha256:...``: its name in a registry.
        annotations: Annotations of its manifest; only the number of kernels and their keys were
            checked.
        entries: Its kernels, by key.
        layer_bytes: Size of its compressed layer.
        notes: Its records of the plans and devices that it covers; nothing signs them.
    """

    digest: str
    annotations: dict[str, str]
    entries: tuple[Packed, ...]
    layer_bytes: int
    notes: tuple[Coverage, ...] = ()


def digest_of_keys(keys: list[str]) -> str:
    """Return the digest of the kernels' keys, by which a manifest identifies them."""
    return hashlib.sha256("\n".join(sorted(keys)).encode("ascii")).hexdigest()


def write(tar: bytes, annotations: Mapping[str, str], host: str, name: str) -> bytes:
    """
    Return a bundle; equal arguments give equal bytes.

    Args:
        tar: The layer, not compressed.
        annotations: Annotations of the manifest.
        host: The host in the entries' key documents, such as ``linux-x86_64``.
        name: Name of the image for container engines: letters, digits, dots and dashes.
    """
    system, _, machine = host.partition("-")
    platform = {"architecture": _PLATFORMS.get(machine, machine), "os": system}
    packed = wire.compress(tar)
    config = _encoded(
        {
            **platform,
            "config": {"Labels": dict(annotations)},
            "history": [{"created_by": f"jitgen {__version__} bundle export"}],
            "rootfs": {"type": "layers", "diff_ids": [_digest(tar)]},
        }
    )
    manifest = _encoded(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, packed)],
            "annotations": dict(annotations),
        }
    )
    described = {**_descriptor(_MANIFEST, manifest), "platform": platform}
    index = {
        "schemaVersion": 2,
        "mediaType": _INDEX,
        "manifests": [{**described, "annotations": {_REF: name}}],
    }
    blobs = {_blob(_digest(each)): each for each in (manifest, config, packed)}
    return archive.write(
        [
            ("oci-layout", _encoded({"imageLayoutVersion": "1.0.0"})),
            ("index.json", _encoded(index)),
            *sorted(blobs.items()),
        ]
    )


def load(path: Path) -> Bundle:
    """
    Return the bundle at `path`: a tar, or the folder that one was unpacked into.

    Nothing is written, and everything is checked before it is used: each blob against its digest;
    the layer also after unpacking, up to `MAX_BYTES`; each entry against its record; and all
    entries against the keys in the manifest. `jitgen.bundle.install` checks the signatures.

    Raises:
        BundleError: It is not a bundle, is damaged or incomplete, or is too large.
        ToolchainError: The package zstandard is not installed.
    """
    try:
        return _loaded(_reader(path))
    except (Damaged, BadDocument) as error:
        raise BundleError(f"{path} is no bundle that can be used: {error}") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error


_Read = Callable[[str], bytes]


def _reader(path: Path) -> _Read:
    """Return a function that reads a file of the layout by its name."""
    if path.is_dir():
        return lambda name: _unpacked(path, name)
    files = archive.read(read_bounded(path, MAX_BYTES))

    def read(name: str) -> bytes:
        if name not in files:
            raise Damaged(f"it lacks {name}")
        return files[name]

    return read


def _unpacked(folder: Path, name: str) -> bytes:
    try:
        return read_bounded(folder / name, MAX_BYTES)
    except FileNotFoundError:
        raise Damaged(f"it lacks {name}") from None


def _loaded(read: _Read) -> Bundle:
    _document(read("oci-layout"))
    index = _document(read("index.json"))
    described = index.get("manifests")
    if not isinstance(described, list) or len(described) != 1:
        raise Damaged("it holds no manifest, or several")
    digest, data = _checked_blob(described[0], _MANIFEST, read)
    manifest = _document(data)
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(layers) != 1:
        raise Damaged("its manifest has no layer, or several: it is some other image")
    _, config = _checked_blob(manifest.get("config"), _CONFIG, read)
    _, packed = _checked_blob(layers[0], _LAYER, read)
    tar = wire.decompress(packed, MAX_BYTES)
    rootfs = _document(config).get("rootfs")
    if not isinstance(rootfs, dict) or rootfs.get("diff_ids") != [_digest(tar)]:
        raise Damaged("its layer is not the one that its config names")
    annotations = manifest.get("annotations")
    if not isinstance(annotations, dict) or not all(
        isinstance(text, str) for text in annotations.values()
    ):
        raise Damaged("its manifest has no annotations")
    entries, notes = layer.read(tar)
    if annotations.get(KEYS) != digest_of_keys([entry.meta.key for entry in entries]):
        raise Damaged("its kernels are not those that its manifest names")
    return Bundle(
        digest=digest,
        annotations=annotations,
        entries=entries,
        layer_bytes=len(packed),
        notes=notes,
    )


def _checked_blob(described: object, kind: str, read: _Read) -> tuple[str, bytes]:
    """Return digest and bytes of the blob that a descriptor of media type `kind` names."""
    if not isinstance(described, dict) or described.get("mediaType") != kind:
        found = described.get("mediaType") if isinstance(described, dict) else described
        raise Damaged(f"there is {shown(found)} where {kind} is to be")
    digest = described.get("digest")
    text = digest.removeprefix(_DIGEST) if isinstance(digest, str) else ""
    if len(text) != 64 or not set(text) <= set("0123456789abcdef") or digest == text:
        raise Damaged(f"a descriptor has a bad digest: {shown(digest)}")
    data = read(_blob(f"{_DIGEST}{text}"))
    if _digest(data) != digest or described.get("size") != len(data):
        raise Damaged(f"blob {text[:12]} does not have its digest")
    return str(digest), data


def _document(data: bytes) -> dict[str, object]:
    document = parse_json(data, max_bytes=_MAX_DOCUMENT_BYTES)
    if not isinstance(document, dict):
        raise Damaged("it holds a document that is no object")
    return document


def _descriptor(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": _digest(data), "size": len(data)}


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix(_DIGEST)}"


def _digest(data: bytes) -> str:
    return f"{_DIGEST}{hashlib.sha256(data).hexdigest()}"


def _encoded(document: dict[str, object]) -> bytes:
    return canonical_json(document).encode("ascii")
