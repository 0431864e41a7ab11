# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `combine`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.combine import CombineConfig
from jitgen.ops import direct
from jitgen.ops import tensors as common
from jitgen.ops.combine.call import CALL
from jitgen.ops.combine.validate import Arguments, validate
from jitgen.ops.values import check_places
from jitgen.runtime.session import current


def check(config: CombineConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Require y (M, N), inverse, topk_weights, shared where `config` has it, and out.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what came.
    """
    session = current.get()
    shared = ("shared",) if config.has_shared else ()
    names = ("y", "inverse", "topk_weights", *shared, "out")
    found = direct.read(config, arch, session, arguments, names, in_place=("shared",))
    args = Arguments(**found)
    valid = validate(args, session)
    common.require("y", args.y, rank=(2, "(M, N)"))
    CALL.require_fit(config, args, valid)
    direct.require_rows("inverse", valid.rows)
    check_places("inverse", args.inverse, args.y.shape[0], "rows of y")
