# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `grouped_gemm_wgrad`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig
from jitgen.config.layouts import ARGUMENT
from jitgen.ops import direct
from jitgen.ops.grouped_gemm_wgrad.call import CALL
from jitgen.ops.grouped_gemm_wgrad.validate import Arguments, validate
from jitgen.runtime.session import current


def check(config: GroupedGemmWgradConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Require dy, a, the tensor that gives groups their rows, and out.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what came.
    """
    session = current.get()
    names = ("dy", "a", ARGUMENT[config.layout], "out")
    found = direct.read(config, arch, session, arguments, names)
    args = Arguments(**found)
    valid = validate(args, session)
    CALL.require_fit(config, args, valid)
    direct.require_rows("dy", valid.rows)
    CALL.check_values(args, valid)
