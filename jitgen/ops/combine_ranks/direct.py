# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `combine_ranks`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.combine_ranks import CombineRanksConfig
from jitgen.ops import direct
from jitgen.ops.combine_ranks.validate import check_places, check_sums
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatch.validate import check_rows, room_of
from jitgen.runtime.session import current


def check(config: CombineRanksConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Check sums, the connection of the rank to its peers, and the result; the memory behind addresses
    is not checked.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    found = direct.read(
        config, arch, current.get(), arguments, config.arguments, in_place=("shared",)
    )
    y, out = found["y"], found["out"]
    link = Link(found["inbox"], found["peers"], found["state"], found.get("notes"))
    check_rows("out", out, ("y", y.device))
    check_sums(y, link, len(out), found.get("shared"), found.get("shared_weights"), out)
    direct.require_rows("out", len(out))
    vectors = y.shape[1] // 4
    if not config.of_experts:
        room_of("y", y, link, len(out), vectors)
        return
    inverse = found["inverse"]
    vectors *= check_places(inverse, found["topk_weights"], len(out), y, link)
    room_of("inverse", inverse, link, len(out), 1 + vectors)
