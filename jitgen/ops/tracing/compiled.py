# SPDX-License-Identifier: Apache-2.0
"""
Replacement for jitgen's calls under torch.compile, which can trace neither the cache of launches
nor a kernel.

Nothing else imports this module, because it imports the whole of torch.compile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from jitgen.ops.dispatcher import constant_result
from jitgen.ops.tracing.library import put, traced

if TYPE_CHECKING:
    from jitgen.config import Config
    from jitgen.ops.call import Args, Call, Result, Validated
    from jitgen.runtime.override import Override

_configs: dict[int, Config | Override] = {}


@constant_result
def _name(
    of: Call[Args, Validated, Result], config: Config | Override, device: torch.device
) -> str | None:
    """
    Return the text that names `config` in a graph.

    torch.compile calls this once and treats the config as opaque; otherwise it would take sizes of
    tiles for sizes of tensors. It guards on the identity of the config. So the config is kept
    alive: its address must not become that of another object.
    """
    _configs[id(config)] = config
    return traced(of).name_of(config, device)


@constant_result
def _is_registered(of: Call[Args, Validated, Result]) -> bool:
    """Register the operations, so that torch.compile finds them in ``torch.ops``."""
    return traced(of) is not None


def call(of: Call[Args, Validated, Result], args: Args) -> Result:
    """Call the torch operation of the call `of`; the graph contains nothing else."""
    _is_registered(of)
    operation, name = getattr(torch.ops.jitgen, of.name), None
    if args.config is not None:
        name = _name(of, args.config, getattr(args, of.like).device)
    return put(of, getattr(operation, of.overload(args)), args, name)
