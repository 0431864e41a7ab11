# SPDX-License-Identifier: Apache-2.0
"""Arguments to a launch: the part of a call that runs once for each combination of shapes."""

from __future__ import annotations

from torch import Tensor

from jitgen.config import Config
from jitgen.config.combine import CombineConfig, CombineProblem
from jitgen.errors import InputError
from jitgen.ops.calling import calling, is_traced
from jitgen.ops.combine.validate import Arguments, Facts, validate
from jitgen.ops.forced import forced
from jitgen.ops.launch import AnyLaunch, Family, Key, chosen, nothing, prepared
from jitgen.ops.values import check_places
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session, current
from jitgen.selection.choice import edges_of
from jitgen.support.frozen import frozen
from jitgen.targets.legality import require


@frozen
class Launch(AnyLaunch):
    """What a call needs besides its tensors."""

    def call(
        self,
        y: Tensor,
        inverse: Tensor,
        topk_weights: Tensor,
        shared: Tensor | None,
        out: Tensor | None,
    ) -> Tensor:
        """
        Launch the kernel, into `out` if it is given; return the sums.

        Raises:
            RuntimeError: Matrices of y do not follow each other, which the entry does not see.
        """
        if y.dim() == 3:
            y = y.view(-1, y.shape[-1])
        if out is None:
            out = y.new_empty((inverse.shape[0], y.shape[1]))
        if shared is None:
            self.function(y, inverse, topk_weights, out, *self.tail)
        else:
            self.function(y, inverse, topk_weights, shared, out, *self.tail)
        return out


def new_out(given: Arguments) -> Tensor:
    """Return sums, not initialised."""
    return given.y.new_empty((given.inverse.shape[0], given.y.shape[-1]))


def run(given: Arguments, config: CombineConfig | Override | None, key: Key) -> Tensor:
    """
    Do what `combine` says, with every check, and remember the launch under `key`.

    A call that torch traces becomes an operation in torch's hands instead, and is not remembered.

    Raises:
        InputError: An argument is wrong, or does not fit the forced config.
        JitgenError: The kernel is missing and cannot be compiled; see `Registry.get`. Nothing
            else: where the device has no memory left, it is a torch.OutOfMemoryError as well.
    """
    if is_traced(given.tensors.values()):
        from jitgen.ops.tracing import combine as traced

        return traced.record(given, config)
    with calling("combine"):
        session = current.get()
        launch = prepared(
            session,
            key,
            given.tensors,
            lambda: _prepare(given, config, session),
            written=("out",),
            in_place=("shared",),  # a thread reads what is shared where it writes the sum
        )
        # Of no rows strides mean nothing, to us; the entry wants them all the same.
        y = given.y if given.y.numel() else given.y.new_empty(given.y.shape)
        return launch.call(y, given.inverse, given.topk_weights, given.shared, given.out)


def _prepare(
    given: Arguments, config: CombineConfig | Override | None, session: Session
) -> tuple[Launch, Family, int]:
    """
    Validate `given`, choose a config unless one is forced, and get a kernel.

    Returns:
        The launch, the family that it belongs to, and its tokens; 0 where there is nothing to
        launch.
    """
    facts = validate(given, session)
    check_places("inverse", given.inverse, given.y.shape[:-1].numel(), "rows of y")
    family = Family(arch=facts.arch)
    neighbours: tuple[Config, ...] = ()
    if config is None:
        problem = problem_of(given, facts)
        wanted, neighbours = chosen(session, problem, facts.arch, "y")
        family = Family(edges=edges_of(problem, facts.arch), arch=facts.arch, problem=problem)
    else:  # whatever the tokens, it serves, and is never replaced
        wanted = require_fit(config, given, facts)
    function, served = nothing, wanted
    if facts.rows:
        function, served = facts.device.entry(session, config or wanted, neighbours)
    launch = Launch(
        function=function,
        tail=facts.device.tail,
        config=served,
        forced=config,
        awaited=None if served == wanted else wanted,
    )
    return launch, family, facts.rows


def problem_of(given: Arguments, facts: Facts) -> CombineProblem:
    """Return what is chosen for."""
    return CombineProblem(
        m=facts.rows, n=facts.n, top_k=facts.top_k, has_shared=given.shared is not None
    )


def require_fit(asked: object, given: Arguments, facts: Facts) -> CombineConfig:
    """
    Return the config that a caller has `asked` for, which is legal and made for a call like this.

    Raises:
        InputError: It is no config, or one for another call.
        UnsupportedConfig: The target cannot run it.
    """
    config: CombineConfig = forced(asked, CombineConfig, facts.arch)
    wanted = CombineConfig(has_shared=given.shared is not None, tiling=config.tiling)
    if config != wanted:
        raise InputError(
            "config",
            f"must be for what is asked, {wanted.words()} (got one for {config.words()})",
        )
    require(config, facts.arch)
    return config
