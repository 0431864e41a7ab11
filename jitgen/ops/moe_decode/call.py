# SPDX-License-Identifier: Apache-2.0
"""`moe_decode`: a layer of experts for few tokens, in one launch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from jitgen.config import Arch
from jitgen.config.moe_decode import MoeDecodeConfig, MoeDecodeProblem
from jitgen.ops import tensors as common
from jitgen.ops.call import calling
from jitgen.ops.dispatch.launch import launch_for
from jitgen.ops.dispatcher import mark_written, require_apart
from jitgen.ops.explicit_config import explicit_config
from jitgen.ops.moe_decode.exchange import Exchange
from jitgen.ops.moe_decode.validate import Experts, check_layer, require_room
from jitgen.runtime.session import current

_OP = MoeDecodeProblem.op
_TOKENS = ("x", "topk_ids", "topk_weights")


def moe_decode(  # noqa: PLR0913  # each is one thing to say
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    experts: Experts,
    exchange: Exchange,
    *,
    first_expert: int = 0,
    shared: Tensor | None = None,
    shared_weights: Tensor | None = None,
    out: Tensor | None = None,
    config: MoeDecodeConfig | None = None,
) -> Tensor:
    """
    Compute a layer of experts for at most 8 tokens in one launch, on GPUs that have such a kernel.

    ``out[t] = sum over j of topk_weights[t, j] * w2[e] . (silu(w13[e, :I] . x[t]) * (w13[e, I:] .
    x[t]))`` with ``e = topk_ids[t, j] - first_expert``, for the experts on this device. Tokens and
    h, the values that w2 is multiplied by, are quantised as `jitgen.quantize.per_token_group` does
    it; sums are float32, rounded once.

    All CTAs of the launch, one on each SM, run at the same time and wait for each other. So two
    such launches must not run on a GPU at the same time, for example on two streams: each might
    occupy SMs that the other one waits for.

    Args:
        x: (T, H) bfloat16, at most 8 tokens; H contiguous and a multiple of 128.
        topk_ids: (T, k) int32, at most 64 in all.
        topk_weights: (T, k) float32.
        experts: The weights of the experts on this device.
        exchange: Memory in which CTAs exchange values, see `Exchange.of`; calls may share it only
            if they run one after another.
        first_expert: Number of the first of the E experts on this device.
        shared: (T, H) bfloat16, the output of a shared expert, which is added at the end.
        shared_weights: (T,) float32, factors of the rows of `shared`; None: 1.
        out: (T, H) bfloat16, where the result goes. It may be `shared`.
        config: A config to use instead of the selector's.

    Returns:
        (T, H) bfloat16.

    Raises:
        InputError: An argument is wrong, or the device has no such kernel; the message says which,
            what is required, and what was given.
        KernelMiss, CompileError: As `jitgen.grouped_gemm`.
    """
    with calling(_OP):
        session = current.get()
        device = common.device_of(_OP, "x", x, session)
        num_ctas = device.tail[0]
        tokens, added = (x, topk_ids, topk_weights), (shared, shared_weights, out)
        problem = check_layer(*tokens, experts, exchange, first_expert, num_ctas, *added)
        tensors = {"x": x, "topk_ids": topk_ids, "topk_weights": topk_weights, "out": out}
        tensors |= {"shared": shared, "shared_weights": shared_weights}
        common.refuse_gradients(tensors, _OP)
        if config is not None:
            require_room(explicit_config(config, MoeDecodeConfig, device.arch), problem.hidden)
        launch = launch_for(session, device, problem, config, "x")
        if out is None:
            out = x.new_empty(x.shape)
        else:
            given = {name: each for name, each in tensors.items() if each is not None}
            require_apart(given, ("out",), in_place=("shared",))
            mark_written((out,))
        extra = tuple(each for each in (shared, shared_weights) if each is not None)
        layer = (*tokens, *experts, *exchange, *extra, out, first_expert)
        launch.function(*layer, *launch.tail)
        return out


def check_direct(config: MoeDecodeConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Check the arguments of a direct call of a kernel, and the memory in which its CTAs exchange
    values.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    from jitgen.ops import direct

    names = config.arguments
    found = direct.read(
        config, arch, current.get(), arguments, names, ("first_expert",), in_place=("shared",)
    )
    exchange = Exchange(found["exchange"], found["state"])
    experts = Experts(*(found[name] for name in Experts._fields))
    check_layer(
        **{name: found[name] for name in _TOKENS},
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
