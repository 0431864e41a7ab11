# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `silu_mul_quantize`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

from jitgen.config import Arch
from jitgen.config.format import Format
from jitgen.config.layouts import ARGUMENT
from jitgen.config.silu_mul_quantize import SiluMulQuantizeConfig
from jitgen.formats import find_format
from jitgen.formats.protocol import Rows
from jitgen.ops import direct
from jitgen.ops.silu_mul_quantize.call import CALL
from jitgen.ops.silu_mul_quantize.validate import Arguments
from jitgen.runtime.session import current


def check(config: SiluMulQuantizeConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Check the arguments of a direct call: x, the tensor that gives groups their rows, q, scales
    computed or given, and the numbers of the activation.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    session, scales = current.get(), config.scale_granularity
    scale = ["scale"] if scales.has_float_scales or scales is Format.TENSOR else []
    numbers = ["group_numbers"] if config.per_group else []
    of_call = () if config.per_group else config.activation.numbers
    found = direct.read(
        *(config, arch, session, arguments),
        ("x", ARGUMENT[config.layout], "q", *scale, *numbers),
        of_call,
    )
    written = found.pop("scale") if scales.has_float_scales else None
    args = Arguments(
        x=found["x"],
        **{name: found.get(name) for name in ARGUMENT.values()},
        out=(found["q"], None),
        format=str(scales),
        global_scale=found.get("scale"),
        **{name: found[name] for name in (*of_call, *numbers)},
        activation=str(config.activation),
        interleaved=config.interleaved,
        power_of_two=config.power_of_two,
    )
    valid = direct.judge(CALL, config, args, session)
    if written is not None:
        form = find_format(scales.scales)
        shape = form.a_shape(Rows(tuple(args.x.shape[:-1])), valid.n)
        direct.require_scales("scale", written, form, shape)
