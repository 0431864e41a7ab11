# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `add_lora`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.add_lora import AddLoraConfig
from jitgen.ops import direct
from jitgen.ops.add_lora import OPERATION
from jitgen.ops.add_lora.call import CALL
from jitgen.ops.add_lora.validate import Arguments
from jitgen.runtime.session import current


def check(config: AddLoraConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Check the arguments of a direct call: the tensors of the public call, out, and the number of the
    first expert.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    session = current.get()
    *tensors, first = OPERATION.arguments
    found = direct.read(config, arch, session, arguments, tensors, (first,), CALL.in_place)
    direct.judge(CALL, config, Arguments(**found, by_row=config.by_row), session)
