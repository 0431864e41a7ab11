# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `unpack_weights`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.unpack_weights import UnpackWeightsConfig
from jitgen.formats.prepacked import PrepackedWeights
from jitgen.ops import direct
from jitgen.ops import tensors as common
from jitgen.ops.unpack_weights.call import require_out
from jitgen.runtime.session import current
from jitgen.targets.legality import rules


def check(config: UnpackWeightsConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Check values, factor, b and b_scale; N and K of the weights are those of b.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    session = current.get()
    names = ("values", "factor", "b", "b_scale")
    found = direct.read(config, arch, session, arguments, names)
    values, b = found["values"], found["b"]
    common.require("b", b, rank=(3, "(G, N, K)"))
    _, n, k = b.shape
    weights = PrepackedWeights(
        values=values, factor=found["factor"], n=n, k=k, layout=config.b_layout
    )
    require_out((b, found["b_scale"]), weights)
    alignment = rules(arch, config.op).alignment
    tensors = [("values", values, alignment), ("b", b, alignment)]
    common.check_memory(tensors, ("values", values.device), has_memory=True)
