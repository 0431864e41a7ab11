# SPDX-License-Identifier: Apache-2.0
"""
Replacement for jitgen's calls under torch.compile, which can follow neither the memo nor a kernel.

Nothing else imports this module, because it imports the whole of torch.compile.
"""

from __future__ import annotations

from typing import Any

import torch

from jitgen.ops.tracing.library import put, traced

_configs: dict[int, Any] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _name(of: Any, config: Any, device: torch.device) -> str | None:
    """
    Return the text that names `config` in a graph.

    torch.compile asks once, does not look into it, where it would take sizes of tiles for sizes of
    tensors, and guards on its identity. So it is kept: its address must not become another's.
    """
    _configs[id(config)] = config
    return traced(of).name_of(config, device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_registered(of: Any) -> bool:
    """Register the operations, which torch.compile then finds in ``torch.ops``."""
    return traced(of) is not None


def call(of: Any, args: Any) -> Any:
    """Call the operation, which is all that the graph holds."""
    _is_registered(of)
    operation, name = getattr(torch.ops.jitgen, of.name), None
    if args.config is not None:
        name = _name(of, args.config, getattr(args, of.like).device)
    return put(of, getattr(operation, of.overload(args)), args, name)
