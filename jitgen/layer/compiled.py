# SPDX-License-Identifier: Apache-2.0
"""
A layer that trains, under torch.compile: one operation in the graph.

Nothing else imports this module, because it imports the whole of torch.compile.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jitgen.layer import gradients
from jitgen.ops.dispatcher import constant_result


@constant_result
def _is_registered() -> bool:
    """Register the operation, so that torch.compile finds it in ``torch.ops``."""
    return gradients.operation() is not None


def layer(values: tuple[object, ...]) -> Tensor:
    """Call the operation; the graph contains nothing else."""
    _is_registered()
    found: Tensor
    found, _ = torch.ops.jitgen.moe(*values)
    return found
