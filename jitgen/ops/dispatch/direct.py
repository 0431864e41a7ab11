# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `dispatch`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.dispatch import DispatchConfig
from jitgen.errors import InputError
from jitgen.ops import direct
from jitgen.ops.dispatch.rounds import Link
from jitgen.ops.dispatch.validate import check_link, check_tokens, room_of
from jitgen.runtime.session import current


def check(config: DispatchConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Check tokens, the connection of the rank to its peers, and results; the memory behind addresses
    is not checked.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    found = direct.read(config, arch, current.get(), arguments, config.arguments)
    x, ids = found["x"], found["topk_ids"]
    check_tokens(x, ids, found["topk_weights"])
    link = Link(found["inbox"], found["peers"], found["state"], found.get("notes"))
    check_link(link, ("x", x.device))
    out = found["out_x"], found["out_ids"], found["out_weights"]
    check_tokens(*out, "out_")
    room_of("out_x", out[0], link, len(x), x.shape[1] // 4 + ids.shape[1])
    for name, mine, wanted in (("out_x", out[0], x), ("out_ids", out[1], ids)):
        if mine.shape[1] != wanted.shape[1]:
            shape = f"{wanted.shape[1]} columns, as what is sent"
            raise InputError(name, f"must have {shape} (got {mine.shape[1]})")
