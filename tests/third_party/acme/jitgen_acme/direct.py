# SPDX-License-Identifier: Apache-2.0
"""What a kernel of ours is called with directly: sizes that the compiled function does not see."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.errors import InputError
from jitgen_acme.operation import RowsConfig


def check(config: RowsConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Require x (M, K), s (G,), ends (G,) and out (M, K), all of them tensors.

    Raises:
        InputError: The arguments are others.
    """
    if len(arguments) != 4:
        raise InputError("arguments", f"must be 4 for {config.name(arch)} (got {len(arguments)})")
    for name, tensor, rank in zip(("x", "s", "ends", "out"), arguments, (2, 1, 1, 2), strict=True):
        if getattr(tensor, "ndim", None) != rank:
            raise InputError(name, f"must be a tensor of {rank} dimensions")
