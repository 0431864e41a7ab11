# SPDX-License-Identifier: Apache-2.0
"""
`sort_pairs` and `permute_quantize` in one launch, for few tokens: every warp counts for itself
which rows its token goes to.

It is for chains of launches, such as a layer's, where a launch less is time saved. The results are
those of the two, bit by bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _len_torch_dispatch_stack as num_modes
from torch.autograd import forward_ad

from jitgen.config import Config
from jitgen.config.permute_quantize import PermuteQuantizeConfig, PermuteQuantizeProblem, Walk
from jitgen.errors import InputError
from jitgen.formats.protocol import Rows, ScaleFormat
from jitgen.ops.calling import calling, is_traced, require_shape
from jitgen.ops.dispatcher import mark_written
from jitgen.ops.forced import forced
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, prepared, present, similar
from jitgen.ops.permute_quantize.call import permute_quantize
from jitgen.ops.permute_quantize.dispatch import form_of, stored_as
from jitgen.ops.permute_quantize.validate import Arguments, Facts, validate
from jitgen.ops.route import validate as pairs
from jitgen.ops.route.call import sort_pairs
from jitgen.ops.route.dispatch import new_indices, nobody
from jitgen.ops.route.results import Sorting
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require


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
    What a call needs besides its tensors.

    Attributes:
        q_dtype: Element type of q.
        form: The format of the scales that the kernel finds; None where it finds none.
        local_experts: G.
    """

    q_dtype: torch.dtype
    form: ScaleFormat | None
    local_experts: int

    def call(self, x: Tensor, topk_ids: Tensor, scale: Tensor | None, out: Tensor | None) -> Sorted:
        """Launch the kernel, into `out` if it is given."""
        tokens, top_k = topk_ids.shape
        rows, columns = tokens * top_k, x.shape[-1]
        order = Sorting(*new_indices(topk_ids, tokens, top_k, self.local_experts, 0))
        q = x.new_empty((rows, columns), dtype=self.q_dtype) if out is None else out
        given = [] if scale is None else [scale]
        if self.form is not None:
            scale = self.form.new_a(x, Rows((rows,), 0), columns)
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
    scale_granularity: str = "block128",
    scale: Tensor | None = None,
    power_of_two: bool = False,
    out: Tensor | None = None,
    config: PermuteQuantizeConfig | Override | None = None,
) -> Sorted:
    """
    Sort pairs of tokens and experts, and copy the rows of tokens to where their experts want them,
    quantised.

    Any number of tokens is right. It is meant for some hundred pairs at most, because every warp
    looks at all of them. Tracers see `jitgen.sort_pairs` and `jitgen.permute_quantize`, whatever
    the config.

    Args:
        x: (T, K) bfloat16, as for `jitgen.permute_quantize`.
        topk_ids: (T, k) int32, dense, as for `jitgen.sort_pairs`: k at most 32.
        experts: Experts of all devices.
        first_expert: The first local one.
        local_experts: How many follow it here, at most 512; None: all up to the last one.
        scale_granularity: ``block128``, ``row``, ``tensor`` or ``none``.
        scale: (1,) float32 for ``tensor``.
        power_of_two: Round scales that the kernel finds up to powers of two.
        out: (T * k, K), where q goes.
        config: A config to use instead of the selector's, or an edited kernel.

    Returns:
        The rows, their scales, and the order of the pairs.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what came.
        UnsupportedConfig: The target cannot run `config`.
        KernelMiss: The kernel is not compiled, and compiling is off or a CUDA graph is being
            captured.
        CompileError: The kernel cannot be compiled.
    """
    if is_traced((x, topk_ids, scale, out)):
        named: dict[str, Any] = {"first_expert": first_expert, "local_experts": local_experts}
        order = sort_pairs(topk_ids, experts=experts, **named)
        rows = permute_quantize(
            *(x, order.permutation),
            top_k=topk_ids.shape[1],
            offs=order.offs,
            inverse=order.inverse,
            scale_granularity=scale_granularity,
            scale=scale,
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
            *(scale_granularity, scale is None, power_of_two),
            out is None,
            None if config is None else id(config),
            num_modes(),
            is_grad_enabled(),
            forward_ad._current_level,
        )
        session = current.get()
        launch: Launch
        for launch in session.memo.get(key) or similar(session, key, x):
            if launch.fits(*present(x, topk_ids, scale, out)):
                if out is not None:
                    mark_written((out,))
                return launch.call(x, topk_ids, scale, out)
    except Exception:  # noqa: S110  # a new key, or the entry refused: find out why below
        pass
    with calling("sort_quantize"):
        session = current.get()
        of_pairs = pairs.Arguments(
            topk_ids=topk_ids,
            experts=experts,
            first_expert=first_expert,
            local_experts=local_experts,
        )

        def prepare() -> tuple[Launch, Family, int]:
            local = pairs.validate(of_pairs, session).local_experts
            tokens = x.shape[0], topk_ids.shape[1]
            require_shape("topk_ids", topk_ids, tokens, "a row for each token")
            given = _arguments(
                *(x, topk_ids, local, scale_granularity, scale, power_of_two, out),
            )
            return _prepare(given, local, first_expert, config, session)

        tensors = {"x": x, "topk_ids": topk_ids, "scale": scale, "out": out}
        given = {name: each for name, each in tensors.items() if isinstance(each, Tensor)}
        launch = prepared(session, key, given, prepare, written=("out",))
        return launch.call(x, topk_ids, scale, out)


def _arguments(
    x: Tensor,
    topk_ids: Tensor,
    local_experts: int,
    scale_granularity: str,
    scale: Tensor | None,
    power_of_two: bool,
    out: Tensor | None,
) -> Arguments:
    """Return the same call where the pairs were sorted before, whose rules are those of this."""
    tokens, top_k = topk_ids.shape
    offs, permutation, inverse = new_indices(topk_ids, tokens, top_k, local_experts, 0)
    return Arguments(
        x=x,
        permutation=permutation,
        top_k=top_k,
        offs=offs,
        m_indices=None,
        masked_m=None,
        inverse=inverse,
        scale_granularity=scale_granularity,
        q_dtype=None,
        scale=scale,
        power_of_two=power_of_two,
        rounding="up",
        out=out,
    )


def _prepare(
    given: Arguments,
    local_experts: int,
    first_expert: int,
    config: PermuteQuantizeConfig | Override | None,
    session: Session,
) -> tuple[Launch, Family, int]:
    """Validate `given`, choose a config unless one is forced, and get a kernel."""
    facts = validate(given, session)
    if facts.format.has_atoms:
        raise InputError(
            "scale_granularity",
            f"must be block128, row, tensor or none, whose scales lie where a row does (got "
            f"{given.scale_granularity})",
        )
    problem = problem_of(given, facts)
    family = Family(arch=facts.arch)
    neighbours: tuple[Config, ...] = ()
    if config is None:
        wanted, neighbours = chosen(session, problem, facts.arch, "x")
        family = Family.of(problem, facts, None)
    else:
        wanted = require_fit(config, problem, facts)
    function, served = nobody, wanted
    if facts.rows:
        function, served = facts.device.entry(session, config or wanted, neighbours)
    launch = Launch(
        function=function,
        tail=(first_expert, *facts.device.tail),
        config=served,
        forced=config,
        awaited=None if served == wanted else wanted,
        q_dtype=stored_as(facts.format),
        form=form_of(facts.format),
        local_experts=local_experts,
    )
    return launch, family, facts.rows


def problem_of(given: Arguments, facts: Facts) -> PermuteQuantizeProblem:
    """Return what is chosen for."""
    return PermuteQuantizeProblem(
        layout=facts.layout,
        m=facts.rows,
        k=facts.k,
        top_k=given.top_k,
        format=facts.format,
        walk=Walk.SORT,
        power_of_two=given.power_of_two,
    )


def require_fit(
    asked: object, problem: PermuteQuantizeProblem, facts: Facts
) -> PermuteQuantizeConfig:
    """
    Return the config that a caller has `asked` for, which is legal and made for a call like this.

    Raises:
        InputError: It is no config, or one for another call.
        UnsupportedConfig: The target cannot run it.
    """
    config: PermuteQuantizeConfig = forced(asked, PermuteQuantizeConfig, facts.arch)
    wanted = PermuteQuantizeConfig(
        layout=problem.layout,
        format=problem.format,
        walk=problem.walk,
        power_of_two=problem.power_of_two,
        tiling=config.tiling,
    )
    if config != wanted:
        raise InputError(
            "config",
            f"must be for what is asked, {wanted.words()} (got one for {config.words()})",
        )
    require(config, facts.arch)
    return config
