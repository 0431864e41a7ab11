# SPDX-License-Identifier: Apache-2.0
"""What stands around every call of an operation: which errors may leave it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from jitgen.boundary import boundary
from jitgen.errors import ResourceError


class _OutOfMemory(ResourceError, torch.OutOfMemoryError):
    """The device has no memory left for an output: an error of jitgen's, and of torch's."""


@contextmanager
def calling(op: str) -> Iterator[None]:
    """Let only errors of jitgen's leave a call of `op`; out of memory is torch's as well."""
    try:
        with boundary(op):
            yield
    except ResourceError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise _OutOfMemory(str(error)) from error.__cause__
        raise
