# SPDX-License-Identifier: Apache-2.0
"""
`sort_pairs` and `permute_quantize` in one launch, for few tokens: every warp computes on its own
the rows of its token.

It is meant for chains of launches, such as a layer, where one launch less saves time. The results
have the same bits as those of the two operations.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad

from jitgen.config import Arch, Config
from jitgen.config.permute_quantize import PermuteQuantizeConfig, PermuteQuantizeProblem, Walk
from jitgen.config.problem import Problem
from jitgen.errors import InputError
from jitgen.formats.protocol import Rows, ScaleFormat
from jitgen.ops.call import Call, calling
from jitgen.ops.dispatcher import is_traced, mark_written
from jitgen.ops.launch import AnyLaunch, Family, Kernel, Key, present, similar
from jitgen.ops.permute_quantize.call import permute_quantize
from jitgen.ops.permute_quantize.dispatch import stored_as
from jitgen.ops.permute_quantize.validate import Arguments, Validated, form_of, validate
from jitgen.ops.route import validate as pairs
from jitgen.ops.route.call import sort_pairs
from jitgen.ops.route.dispatch import new_indices, without_tokens
from jitgen.ops.route.results import Sorting
from jitgen.ops.scaled import Scaled
from jitgen.ops.tensors import require, tensors_of
from jitgen.runtime.devices import Device
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.support.frozen import frozen


class Sorted(NamedTuple):
    """
    Rows in the order of their experts.

    Attributes:
        q: (T * k, K): the token of each row, quantised; rows of no expert are not initialised.
        scale: Its scales, as `jitgen.permute_quantize` returns them.
        order: What `jitgen.sort_pairs` returns.
    """

    q: Tensor
    scale: Tensor | None
    order: Sorting


@frozen
class Launch(AnyLaunch):
    """
    A cached launch: everything that a call needs except its tensors.

    Attributes:
        q_dtype: Element type of q.
        form: The format of the scales that the kernel finds; None if the kernel computes no scales.
        local_experts: G.
    """

    q_dtype: torch.dtype
    form: ScaleFormat | None
    local_experts: int

    def call(
        self,
        x: Tensor,
        topk_ids: Tensor,
        scale: Tensor | None,
        q: Tensor | None,
        found: Tensor | None,
    ) -> Sorted:
        """Launch the kernel, into `q` and `found` if they are given; return its results."""
        tokens, top_k = topk_ids.shape
        rows, columns = tokens * top_k, x.shape[-1]
        order = Sorting(*new_indices(topk_ids, tokens, top_k, self.local_experts, 0))
        if q is None:
            q = x.new_empty((rows, columns), dtype=self.q_dtype)
        given = [] if scale is None else [scale]
        if self.form is not None:
            scale = self.form.new_a(x, Rows((rows,), 0), columns) if found is None else found
            given = [scale]
        self.function(x, topk_ids, q, *given, *order, *self.tail)
        return Sorted(q, scale, order)


def sort_quantize(  # noqa: PLR0913  # each is one thing to say
    x: Tensor,
    topk_ids: Tensor,
    *,
    experts: int,
    first_expert: int = 0,
    local_experts: int | None = None,
    format: str = "block128",  # noqa: A002  # as of `jitgen.permute_quantize`
    global_scale: Tensor | None = None,
    power_of_two: bool = False,
    out: Scaled | None = None,
    config: PermuteQuantizeConfig | Override | None = None,
) -> Sorted:
    """
    Sort pairs of tokens and experts, and copy the rows of tokens into the order of experts,
    quantised.

    Any number of tokens is allowed, but the function is meant for some hundred pairs at most,
    because every warp reads all of them. Tracers see `jitgen.sort_pairs` and
    `jitgen.permute_quantize`, for every config.

    Args:
        x: (T, K) bfloat16, as for `jitgen.permute_quantize`.
        topk_ids: (T, k) int32, dense, as for `jitgen.sort_pairs`: k at most 32.
        experts: Experts of all devices.
        first_expert: The first local one.
        local_experts: Number of local experts, at most 1,024; None: all from the first to the last
            expert.
        format: ``block128``, ``row``, ``tensor`` or ``none``.
        global_scale: (1,) float32 for ``tensor``.
        power_of_two: Round scales that the kernel finds up to powers of two.
        out: Where q and scale go, as for `jitgen.permute_quantize`.
        config: A config to use instead of the selector's, or an edited kernel.

    Returns:
        The rows, their scales, and the order of the pairs.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
        UnsupportedConfig: The target cannot run `config`.
        KernelMiss: The kernel is not compiled, and compiling is off or a CUDA graph is being
            captured.
        CompileError: The kernel cannot be compiled.
    """
    q, scale = (None, None) if out is None else out
    if is_traced((x, topk_ids, global_scale, q, scale)):
        named: dict[str, Any] = {"first_expert": first_expert, "local_experts": local_experts}
        order = sort_pairs(topk_ids, experts=experts, **named)
        rows = permute_quantize(
            *(x, order.permutation),
            top_k=topk_ids.shape[1],
            offs=order.offs,
            inverse=order.inverse,
            format=format,
            global_scale=global_scale,
            power_of_two=power_of_two,
            out=out,
        )
        return Sorted(*rows, order)
    key: Key = ()
    try:
        shape = x.shape
        key = (
            "sort_quantize",
            shape,  # in its place: `launch.ROWS`
            shape[-1],
            topk_ids.shape[-1],
            *(experts, first_expert, local_experts),
            *(format, global_scale is None, power_of_two),
            None if q is None else q.shape[-1],
            None if scale is None else scale.shape,
            None if config is None else id(config),
            num_modes(),
            is_grad_enabled(),
            forward_ad._current_level,
        )
        session = current.get()
        launch: Launch
        for launch in session.memo.get(key) or similar(session, key, x):
            if launch.fits(*present(x, topk_ids, global_scale, q, scale)):
                if q is not None:
                    mark_written((q,) if scale is None else (q, scale))
                return launch.call(x, topk_ids, global_scale, q, scale)
    except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
        pass
    args = SortArguments(
        x=x,
        topk_ids=topk_ids,
        experts=experts,
        first_expert=first_expert,
        local_experts=local_experts,
        format=format,
        global_scale=global_scale,
        power_of_two=power_of_two,
        out=out,
        config=config,
    )
    with calling(SORTED.name):
        return SORTED.launched(args, tensors_of(args), key)


class SortArguments(NamedTuple):
    """The arguments of one call of `sort_quantize`, as the caller gave them."""

    x: Tensor
    topk_ids: Tensor
    experts: int
    first_expert: int = 0
    local_experts: int | None = None
    format: str = "block128"
    global_scale: Tensor | None = None
    power_of_two: bool = False
    out: Scaled | None = None
    config: Config | Override | None = None


class ValidatedSort(NamedTuple):
    """
    A valid call that sorts.

    Attributes:
        args: The same call with sorted pairs, for which the same rules hold.
        checked: The validated form of `args`.
        local_experts: G.
    """

    args: Arguments
    checked: Validated
    local_experts: int

    @property
    def arch(self) -> Arch:
        """The target."""
        return self.checked.arch

    @property
    def device(self) -> Device:
        """Device that the call runs on."""
        return self.checked.device

    @property
    def rows(self) -> int:
        """Number of tokens."""
        return self.checked.rows


def validated(args: SortArguments, session: Session) -> ValidatedSort:
    """
    Check the arguments and return the sizes, types and target of the call.

    Raises:
        InputError: An argument is wrong.
    """
    x, topk_ids = args.x, args.topk_ids
    of_pairs = pairs.SortArguments(topk_ids, args.experts, args.first_expert, args.local_experts)
    local_experts = pairs.validate(of_pairs, session).local_experts
    tokens, top_k = topk_ids.shape
    require("topk_ids", topk_ids, shape=((x.shape[0], top_k), "a row for each token"))
    offs, permutation, inverse = new_indices(topk_ids, tokens, top_k, local_experts, 0)
    rows = Arguments(
        x=x,
        permutation=permutation,
        top_k=top_k,
        offs=offs,
        inverse=inverse,
        format=args.format,
        global_scale=args.global_scale,
        power_of_two=args.power_of_two,
        out=args.out,
    )
    valid = validate(rows, session)
    if valid.format.has_atoms:
        raise InputError(
            "format",
            f"must be block128, row, tensor or none, whose scales lie where a row does (got "
            f"{args.format})",
        )
    return ValidatedSort(rows, valid, local_experts)


class SortQuantize(Call[SortArguments, ValidatedSort, Sorted]):
    """Calls of `sort_quantize`; tracers see `sort_pairs` and `permute_quantize` instead."""

    name = "sort_quantize"
    arguments = SortArguments
    config = PermuteQuantizeConfig
    like = "x"
    validate = staticmethod(validated)
    without_rows = staticmethod(without_tokens)

    def problem(self, args: SortArguments, valid: ValidatedSort) -> PermuteQuantizeProblem:
        return PermuteQuantizeProblem(
            m=valid.rows, k=valid.checked.k, top_k=valid.args.top_k, **self.kind(args, valid)
        )

    def kind(self, args: SortArguments, valid: ValidatedSort) -> dict[str, Any]:
        return {
            "layout": valid.checked.layout,
            "format": valid.checked.format,
            "walk": Walk.SORT,
            "power_of_two": valid.args.power_of_two,
            "rounding": valid.checked.rounding,
        }

    def family(self, problem: Problem, args: SortArguments, valid: ValidatedSort) -> Family:
        return Family.of(problem, valid.checked, None)

    def launch(self, args: SortArguments, valid: ValidatedSort, kernel: Kernel) -> Launch:
        form = valid.checked.format
        return Launch(
            **kernel | {"tail": (args.first_expert, *valid.device.tail)},
            q_dtype=stored_as(form),
            form=form_of(form),
            local_experts=valid.local_experts,
        )

    def start(self, launch: Launch, args: SortArguments) -> Sorted:
        into = args.out or (None, None)
        return launch.call(args.x, args.topk_ids, args.global_scale, *into)


SORTED = SortQuantize(sort_quantize)
