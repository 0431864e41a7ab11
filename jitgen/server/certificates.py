# SPDX-License-Identifier: Apache-2.0
"""The files of TLS: checked, then given to the library at paths in memory."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from jitgen.ownership.files import in_memory
from jitgen.server.settings import Listen
from jitgen.support.documents import BadDocument

_MAX_BYTES = 2**22  # the authorities of a whole system have 250 KB


class Files(NamedTuple):
    """Paths of the certificate chain, its key, and the authorities of clients; None if not set."""

    certificate: str | None
    certificate_key: str | None
    client_ca: str | None


@contextmanager
def certificate_files(listen: Listen) -> Iterator[Files]:
    """
    Yield paths at which the files that `listen` names can be read, within the with block.

    Raises:
        BadDocument: Other users can write or replace one of them, or it is no regular file.
        OSError: One cannot be read.
    """
    with ExitStack() as stack:
        paths = (listen.certificate, listen.certificate_key, listen.client_ca)
        yield Files(
            *(
                None if path is None else stack.enter_context(in_memory(path, _MAX_BYTES))
                for path in paths
            )
        )


def check_certificates(listen: Listen) -> None:
    """
    Check that a service could listen with the files that `listen` names.

    Raises:
        OSError, BadDocument: It could not.
    """
    with certificate_files(listen) as files:
        if files.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                context.load_cert_chain(files.certificate, files.certificate_key)
            except ssl.SSLError as error:
                raise BadDocument(
                    f"certificate and certificate_key are no certificate and its key, PEM ({error})"
                ) from error
            try:
                if files.client_ca is not None:
                    context.load_verify_locations(files.client_ca)
            except ssl.SSLError as error:
                raise BadDocument(f"client_ca has no certificates, PEM ({error})") from error
