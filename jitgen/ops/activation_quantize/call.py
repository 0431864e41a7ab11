# SPDX-License-Identifier: Apache-2.0
"""The public `activation_quantize`, and its warm path: one tuple, one lookup, one tvm-ffi call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from jitgen.config import Arch
from jitgen.config.activation_quantize import ActivationQuantizeConfig
from jitgen.config.format import Format
from jitgen.config.layouts import ARGUMENT
from jitgen.formats import find_format
from jitgen.formats.protocol import Rows
from jitgen.ops.activation_quantize.dispatch import ActivationQuantize, Launch
from jitgen.ops.activation_quantize.validate import Arguments
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.launch import present, similar
from jitgen.ops.scaled import with_scale
from jitgen.runtime.override import Override
from jitgen.runtime.session import current
from jitgen.support.moved import renamed, with_new_names


def activation_quantize(  # noqa: C901, PLR0912, PLR0913  # each is one thing to say
    x: Tensor,
    *,
    offs: Tensor | None = None,
    m_indices: Tensor | None = None,
    masked_m: Tensor | None = None,
    format: str = "block128",  # noqa: A002  # as quantising calls name it
    global_scale: Tensor | None = None,
    activation: str = "swiglu",
    interleaved: bool = False,
    swiglu_limit: float | None = None,
    swiglu_alpha: float | None = None,
    swiglu_beta: float | None = None,
    gate_softcap: float | None = None,
    up_softcap: float | None = None,
    group_numbers: Tensor | None = None,
    power_of_two: bool = False,
    out: tuple[Tensor, Tensor | None] | None = None,
    expected_m: int | None = None,
    config: ActivationQuantizeConfig | Override | None = None,
    **old: object,
) -> tuple[Tensor, Tensor | None]:
    """
    Activate and quantise the rows of every group: the step of an MoE layer between its two GEMMs.

    ``y[m, i] = gate / (1 + exp(-gate)) * up`` in float32 (with the default activation), where gate
    is ``x[m, i]`` and up ``x[m, I + i]``; then ``q = y / scale``, rounded once.
    `jitgen.grouped_gemm` takes the results as ``a`` and ``a_scale`` without conversion. The kernel
    is compiled at the first call that needs it, unless it was prewarmed or JITGEN_ON_MISS says
    otherwise; it runs on the current stream of the tensors' device, and the host does not wait for
    it.

    Exactly one of `offs`, `m_indices` and `masked_m` says which rows belong to a group, as for
    `jitgen.grouped_gemm`. Their values are read on the device and not checked, unless JITGEN_CHECK
    is on: see docs/torch.md.

    Args:
        x: (M, 2 I), or (G, M, 2 I) with `masked_m`: bfloat16, the result of the gate-up GEMM, last
            dimension contiguous; I columns where `activation` has no gate. On sm_90a I is a
            multiple of 8, and address and strides are multiples of 16 bytes.
        offs: (G,) int32, the ragged layout: for each group, the index after its last row. Rows from
            ``offs[-1]`` on belong to no group.
        m_indices: (M,) int32, the contiguous layout: the group of each row, -1 for padding.
        masked_m: (G,) int32, the masked layout: for each group, how many of its M rows are valid.
        format: Format of the results, which says how many of them share a scale:

            =============  ===============================  ==================  ================
            format         scale                            q                   found by
            =============  ===============================  ==================  ================
            block128       (M, IB) or (G, M, IB)            float8_e4m3fn       the kernel
            row            (M,) or (G, M)                   float8_e4m3fn       the kernel
            tensor         (1,)                             float8_e4m3fn       the caller
            none           None                             bfloat16
            =============  ===============================  ==================  ================

            with IB = ceil(I / 128), float32. A scale that the kernel computes is max(abs(y)) / 448,
            or 1 if all values are zero: the same bits as `jitgen.quantize` gives for the same y.
            Block scales have M contiguous and the stride of IB a multiple of 4, so GEMMs read them
            without a copy.
        global_scale: (1,) float32 on the same device, for ``tensor`` only: a factor of dequantised
            values; results are divided by it. (As of `jitgen.quantize.nvfp4`; the global scales of
            TRT-LLM and compressed-tensors are its reciprocal.)
        activation: The function of a gate and an up, or of one value of x for activations without a
            gate:

            ================  ====================================================
            activation        formula
            ================  ====================================================
            swiglu            ``gate / (1 + exp(-gate)) * up``
            swiglu_clamp      the same, with both limited before
            swiglu_oai        ``gate / (1 + exp(-swiglu_alpha * gate)) * (up + 1)``,
                              with both limited before
            swiglu_bias       the same with ``up + swiglu_beta``
            swiglu_step       ``min(silu(gate), swiglu_limit) * up``, with up limited
            situ              ``softcap(gate) / (1 + exp(-gate)) * softcap(up)`` with
                              ``softcap(x) = cap * tanh(x / cap)``
            geglu             ``gelu(gate) * up``
            geglu_tanh        the same with gelu's approximation by tanh
            relu2             ``max(x, 0)**2``
            relu              ``max(x, 0)``
            silu              ``silu(x)``
            gelu, gelu_tanh   ``gelu(x)``, exact or approximated
            identity          ``x``
            ================  ====================================================

            A limited gate is at most `swiglu_limit`; a limited up is between -swiglu_limit and
            swiglu_limit.
        interleaved: Gates are in the even columns of x and ups in the odd ones; False without
            gates.
        swiglu_limit: For activations with a limit in their formula, which need it; at least 0.
        swiglu_alpha: For activations with it in their formula, which need it; of any sign.
        swiglu_beta: Likewise.
        gate_softcap: For ``situ``, which needs it; 1e-30 to 1e30 (Kimi-K3 has 4).
        up_softcap: For ``situ``, which needs it; 1e-30 to 1e30 (Kimi-K3 has 25).
        group_numbers: (G, n) float32, contiguous, on the same device: for each group the n numbers
            of the formula, instead of the arguments above and in their order. For ``swiglu_oai``,
            for example, limits and alphas: ``torch.stack((limits, alphas), 1)``. Values are not
            checked.
        power_of_two: Round scales that the kernel finds up to powers of two.
        out: Where results go, a tuple in the order in which they are returned: q and scale, as
            described below. q has I contiguous, and on sm_90a address and strides that are
            multiples of 8 values; scale has the layout of a new one. None instead of scale means a
            new tensor, or that the format has no scales. Rows of no group are not written.
        expected_m: Expected number of rows of a group, by which the kernel is chosen; results are
            right for any value. If it is not given, groups are assumed to be equally large, and
            masked groups to be full.
        config: A config to use instead of the one that the selector chooses, or an edited kernel:
            see `jitgen.override`.
        **old: Arguments by their old names: see docs/renamed.md.

    Returns:
        q: (M, I) or (G, M, I). Rows of no group are not written: those from ``offs[-1]`` on, where
            `m_indices` is -1, from ``masked_m[g]`` on. In a new tensor they contain whatever was in
            memory.
        scale: The scales, with the same rows unwritten; for ``tensor`` the given one; None for
            ``none``.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given. While autograd is on, so is a tensor that requires a gradient, except x with
            format ``none`` and neither `out` nor `group_numbers`.
        UnsupportedConfig: The target cannot run `config`.
        KernelMiss: The kernel is not compiled, and compiling is off or a CUDA graph is being
            captured.
        CompileError: The kernel cannot be compiled.

    Safe to call from any thread. torch's tracers see one operation,
    ``torch.ops.jitgen.activation_quantize``; see `jitgen.ops.tracing`.
    """
    if old:
        return activation_quantize(**with_new_names(activation_quantize, locals()))
    if out is not None and not isinstance(out, tuple):
        out = with_scale(out, "activation_quantize")
    key: tuple[object, ...] = ()
    if not is_dynamo_compiling():
        try:
            groups: Tensor | None = None
            q, scale = (None, None) if out is None else out
            if m_indices is None and masked_m is None:
                layout, groups = "ragged", offs
            elif offs is None and masked_m is None:
                layout, groups = "contiguous", m_indices
            elif offs is None and m_indices is None:
                layout, groups = "masked", masked_m
            else:
                layout = "several"  # a mistake: never remembered, so the validation below tells it
            # What a guard knows is not in the key, nor strides, nor that q, scale and groups have
            # the rows of x: the entry refuses others, and run() replaces it.
            shape = x.shape
            key = (
                layout,
                shape,  # in its place: `launch.ROWS`
                shape[-1],
                # The entry does not know that q has half the columns of x, nor how many scales.
                None if q is None else q.shape[-1],
                None if scale is None else scale.shape,
                # Contiguous calls have one for each row, and do not know their groups.
                None if m_indices is not None else groups.numel(),  # type: ignore[union-attr]
                format,
                activation,
                interleaved,
                power_of_two,
                swiglu_limit,  # of these the launch holds the values
                swiglu_alpha,
                swiglu_beta,
                gate_softcap,
                up_softcap,
                None if group_numbers is None else group_numbers.shape,
                expected_m,
                None if config is None else id(config),
                "activation_quantize",  # other operations remember in the same place
                global_scale is None,
                num_modes(),
                is_grad_enabled(),
                forward_ad._current_level,
            )
            session = current.get()
            launch: Launch
            for launch in session.memo.get(key) or similar(session, key, x):
                if not (global_scale is None and scale is None and group_numbers is None):
                    given = (x, groups, global_scale, q, scale, group_numbers)
                    is_for = launch.fits(*present(*given))
                else:
                    is_for = launch.fits(x, groups) if q is None else launch.fits(x, groups, q)
                if is_for:
                    if q is not None:
                        mark_written((q,) if scale is None else (q, scale))
                    return launch.call(x, groups, global_scale, q, scale, group_numbers)
        except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
            pass
    args = Arguments(
        x=x,
        offs=offs,
        m_indices=m_indices,
        masked_m=masked_m,
        format=format,
        global_scale=global_scale,
        activation=activation,
        interleaved=interleaved,
        swiglu_limit=swiglu_limit,
        swiglu_alpha=swiglu_alpha,
        swiglu_beta=swiglu_beta,
        gate_softcap=gate_softcap,
        up_softcap=up_softcap,
        group_numbers=group_numbers,
        power_of_two=power_of_two,
        out=out,
        expected_m=expected_m,
        config=config,
    )
    return CALL.run(args, key)


CALL = ActivationQuantize(activation_quantize)


def check_direct(
    config: ActivationQuantizeConfig, arch: Arch, arguments: tuple[object, ...]
) -> None:
    """
    Check the arguments of a direct call of a kernel: x, the tensor that gives groups their rows, q,
    scales computed or given, and the numbers of the activation.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    from jitgen.ops import direct

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


if not TYPE_CHECKING:  # a type checker has the new names alone

    def __getattr__(name: str) -> object:
        return renamed(__name__, name)
