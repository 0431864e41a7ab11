# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `moe_fc2_dense`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig
from jitgen.errors import InputError
from jitgen.formats import find_format
from jitgen.formats.block128 import is_kernel_layout
from jitgen.ops import direct
from jitgen.ops.moe_fc2_dense.call import CALL
from jitgen.ops.moe_fc2_dense.validate import Arguments, validate
from jitgen.runtime.session import current


def check(config: MoEFc2DenseConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Require a, b, a_scale, b_scale, alpha and out.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what came.
    """
    session = current.get()
    names = ("a", "b", "a_scale", "b_scale", "alpha", "out")
    found = direct.read(config, arch, session, arguments, names)
    args = Arguments(**found)
    valid = validate(args, session)
    CALL.require_fit(config, args, valid)
    direct.require_rows("a", valid.rows)
    direct.require_bytes("a", args.a)
    direct.require_bytes("b", args.b)
    direct.require_readable("a_scale", args.a_scale, find_format(valid.scale_granularity))
    if not is_kernel_layout(args.alpha):
        raise InputError(
            "alpha",
            f"must have tokens contiguous and experts 16 bytes apart, or a multiple (got strides "
            f"{args.alpha.stride()})",
        )
