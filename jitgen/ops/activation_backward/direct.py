# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `activation_backward`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.activation_backward import ActivationBackwardConfig
from jitgen.config.layouts import ARGUMENT
from jitgen.ops import direct
from jitgen.ops.activation_backward.call import CALL
from jitgen.ops.activation_backward.validate import Arguments
from jitgen.runtime.session import current


def check(config: ActivationBackwardConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Check the arguments of a direct call: dy, x, weights, the tensor that gives groups their rows,
    dx, y, sums, and the numbers of the activation.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    session, numbers = current.get(), config.activation.numbers
    names = ("dy", "x", "weights", ARGUMENT[config.layout], "dx", "y", "sums")
    found = direct.read(config, arch, session, arguments, names, numbers)
    args = Arguments(
        dy=found["dy"],
        x=found["x"],
        weights=found["weights"],
        **{name: found.get(name) for name in ARGUMENT.values()},
        out=(found["dx"], found["y"], found["sums"]),
        activation=str(config.activation),
        interleaved=config.interleaved,
        **{name: found[name] for name in numbers},
    )
    direct.judge(CALL, config, args, session)
