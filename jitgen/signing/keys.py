# SPDX-License-Identifier: Apache-2.0
"""
Ed25519 keys and their files.

A private key is a PKCS #8 PEM file, as ``openssl genpkey -algorithm ed25519`` writes it. It is used
only if no other user can read or replace the file: signatures of a key that others could have
copied prove nothing. A key's name, its `keyid`, is the SHA-256 of its public half, so that a name
cannot be chosen.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Self, TypeGuard

from jitgen.errors import SigningError, ToolchainError
from jitgen.ownership.files import Unsafe, read_trusted
from jitgen.support.documents import BadDocument
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64
_MAX_FILE_BYTES = 2**14
_MARK = b"PRIVATE KEY-----"
_NO_KEY = "{} is no private key; jitgen trust key makes one"
_HEX64 = re.compile(r"[0-9a-f]{64}")


def is_digest(value: object) -> TypeGuard[str]:
    """Return whether `value` is a SHA-256 in lower-case hexadecimal, like a keyid."""
    return isinstance(value, str) and _HEX64.fullmatch(value) is not None


def _ed25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ToolchainError(
            f"signatures need the package cryptography ({error}); run: pip install cryptography"
        ) from error
    return ed25519


@frozen
class PublicKey:
    """
    A public key.

    Attributes:
        raw: The 32 bytes of the key.
    """

    raw: bytes

    @property
    def keyid(self) -> str:
        """The key's name: SHA-256 of `raw`, in hexadecimal."""
        return hashlib.sha256(self.raw).hexdigest()

    @property
    def text(self) -> str:
        """The key in base64, as in documents."""
        return base64.b64encode(self.raw).decode("ascii")

    @classmethod
    def parse(cls, text: object) -> Self:
        """
        Parse a public key.

        Raises:
            SigningError: It is not base64 of 32 bytes.
        """
        raw = unbase64(text, "a public key")
        if len(raw) != PUBLIC_BYTES:
            raise SigningError(f"a public key has {len(raw)} bytes, not {PUBLIC_BYTES}")
        return cls(raw=raw)

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Return whether the private half of this key made `signature` of `message`."""
        ed25519 = _ed25519()
        from cryptography.exceptions import InvalidSignature

        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (
            InvalidSignature,
            ValueError,
        ):  # ValueError: no point of the curve
            return False
        return True


class PrivateKey:
    """
    A private key.

    Attributes:
        public: Its public half.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(raw=key.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"PrivateKey({self.keyid[:12]})"

    @property
    def keyid(self) -> str:
        """The key's name: that of its public half."""
        return self.public.keyid

    @classmethod
    def generate(cls) -> Self:
        """Return a new key."""
        return cls(_ed25519().Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Self:
        """
        Return the key in the file `path`.

        Raises:
            SigningError: It does not exist, other users can read, write or replace it, or it holds
                no unencrypted Ed25519 key.
        """
        ed25519 = _ed25519()
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            key = load_pem_private_key(_read_private(path), password=None)
        except (ValueError, TypeError) as error:  # TypeError: it is encrypted
            raise SigningError(f"{path} holds no key that can be read: {error}") from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise SigningError(f"{path} holds a key of another kind; an Ed25519 key is needed")
        return cls(key)

    def save(self, path: Path) -> None:
        """
        Write the key to the new file `path`, mode 0600.

        Raises:
            SigningError: The file exists, or cannot be written.
        """
        from cryptography.hazmat.primitives import serialization

        data = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(descriptor)
        except FileExistsError:
            raise SigningError(f"{path} exists, and no key is overwritten; name another") from None
        except OSError as error:
            raise SigningError(f"the key {path} cannot be written: {error.strerror}") from error

    def sign(self, message: bytes) -> bytes:
        """Return the signature of `message`: 64 bytes, the same each time."""
        return self._key.sign(message)


Sign = Callable[[bytes], bytes]
"""Returns the signature of a message, perhaps from another process that has the key."""


def _read_private(path: Path) -> bytes:
    try:
        data = read_trusted(path, _MAX_FILE_BYTES, is_secret=True)
    except Unsafe as error:
        if _is_another_file(path):  # a file that all may read needs no chmod
            raise SigningError(_NO_KEY.format(path)) from None
        raise SigningError(f"the private key {path} is not used: {error}") from None
    except BadDocument as error:
        raise SigningError(f"{path} is no key: {error}") from None
    except FileNotFoundError:
        raise SigningError(f"there is no private key {path}; jitgen trust key makes one") from None
    except OSError as error:
        raise SigningError(f"the private key {path} cannot be read: {error.strerror}") from error
    if _MARK not in data:
        raise SigningError(_NO_KEY.format(path))
    return data


def _is_another_file(path: Path) -> bool:
    """Return whether a file that others cannot replace holds no private key."""
    with suppress(OSError, BadDocument):
        return _MARK not in read_trusted(path, _MAX_FILE_BYTES)
    return False


def unbase64(text: object, what: str) -> bytes:
    """
    Return the bytes of the base64 `text`.

    Only the canonical text is accepted; others differ from it in bits that decoders ignore.

    Raises:
        SigningError: It is not canonical base64.
    """
    with suppress(binascii.Error, UnicodeEncodeError):
        if isinstance(text, str):
            data = base64.b64decode(text.encode("ascii"), validate=True)
            if base64.b64encode(data).decode("ascii") == text:
                return data
    raise SigningError(f"{what} is not written in base64")
