# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `moe_decode`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.moe_decode import MoeDecodeConfig
from jitgen.ops import direct
from jitgen.ops.moe_decode.exchange import Exchange
from jitgen.ops.moe_decode.validate import Experts, check_layer, require_room
from jitgen.runtime.session import current

_TOKENS = ("x", "topk_ids", "topk_weights")


def check(config: MoeDecodeConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Check the arguments of a layer of experts for few tokens, and the memory in which its CTAs
    exchange values.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    names = config.arguments
    found = direct.read(
        config, arch, current.get(), arguments, names, ("first_expert",), in_place=("shared",)
    )
    exchange = Exchange(found["exchange"], found["state"])
    tokens: dict[str, Any] = {name: found[name] for name in _TOKENS}
    experts = Experts(*(found[name] for name in Experts._fields))
    check_layer(
        **tokens,
        experts=experts,
        exchange=exchange,
        first_expert=arguments[-2],
        num_ctas=arguments[-1],
        shared=found.get("shared"),
        shared_weights=found.get("shared_weights"),
        out=found["out"],
    )
    require_room(config, found["x"].shape[1])
    direct.require_rows("x", len(found["x"]))
