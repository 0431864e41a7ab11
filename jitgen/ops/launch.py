# SPDX-License-Identifier: Apache-2.0
"""
Cached launches, each for calls with equal properties, and families of launches.

A launch is cached under a small tuple of the properties that it depends on and that the compiled
entry does not check, and with a guard against tensors that torch's dispatcher would treat
differently. The entry refuses all other faults of later tensors with the same shapes (types,
strides, alignment, sizes that disagree) before it runs.

Another number of rows is another tuple, but rarely another launch: launches that differ only in
their rows form a family, which has one launch for each bucket of the selector.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import torch
from torch import Tensor

from jitgen.config import Arch, Config, Layout
from jitgen.errors import InputError, UnsupportedConfig
from jitgen.ops.dispatcher import mark_written, require_apart, require_plain
from jitgen.ops.guards import Guard, guard
from jitgen.runtime.session import Session
from jitgen.selection.choice import edges_of
from jitgen.settings import settings
from jitgen.support.frozen import frozen

if TYPE_CHECKING:
    from jitgen.plans.recorder import Tally

MEMO_SIZE = 8192
"""
Largest number of cached launches. When it is exceeded, all are dropped; later calls cache them
again.
"""

KINDS = 16
"""Launches that one key may have, for tensors that differ in what their guards look at."""

ROWS = 1
"""Index, in a key, of the part that depends on the number of rows."""

Key = tuple[Any, ...]


def never(*_: Tensor) -> bool:
    """Return False for all tensors: an uncached launch serves one call."""
    return False


@frozen
class AnyLaunch:
    """
    A cached launch for all calls with equal properties: everything that a call needs except its
    tensors.

    Attributes:
        function: The compiled entry.
        tail: Arguments of the entry after the tensors: numbers of the call, and on a GPU the number
            of SMs, for one CTA on each.
        config: The config that serves.
        asked: The explicit config of the caller. The cache key holds the identity of this object,
            so it must stay alive.
        awaited: The chosen config, if another one serves until its kernel is compiled.
        fits: Returns whether the launch may serve these tensors, given in the order of calls.
    """

    function: Callable[..., Any]
    tail: tuple[Any, ...]
    config: Config
    asked: object = None
    awaited: Config | None
    fits: Guard = field(default=never, compare=False, repr=False)

    @property
    def is_of_capture(self) -> bool:
        """Whether it holds memory that is filled by the CUDA graph which is being captured."""
        return False


class Kernel(TypedDict):
    """The fields of `AnyLaunch` that the choice of a kernel gives."""

    function: Callable[..., Any]
    tail: tuple[Any, ...]
    config: Any  # of the operation's class
    asked: object
    awaited: Config | None


Launch = TypeVar("Launch", bound=AnyLaunch)


@frozen
class Family:
    """
    Launches that differ only in their number of rows.

    Attributes:
        edges: Upper edges of the selector's buckets, in mean rows of a group.
        groups: Divisor that turns rows into mean rows of a group; 1 for masked calls, whose rows
            are the row capacity of a group: it counts as the mean, in buckets and in the tally.
        mean: The mean, if the caller gives it (`expected_m`); 0: it follows from the rows.
        launches: Launches by the edges of their buckets.
        arch: The target; None for calls that are not counted.
        problem: A problem of the family; None for an explicit config.
        tally: Counter of the calls; None if calls are not recorded.
        fits: As in `AnyLaunch`.
    """

    edges: tuple[int, ...] = (0,)
    groups: int = 1
    mean: int = 0
    launches: dict[int, Any] = field(default_factory=dict)
    arch: Arch | None = None
    problem: Any = None
    tally: Tally | None = None
    fits: Guard = field(default=never, compare=False, repr=False)

    @classmethod
    def of(cls, problem: Any, valid: Any, expected_m: int | None) -> Family:
        """
        Return the family of calls that get the same problem as `problem` except for their rows.
        """
        return cls(
            edges=edges_of(problem, valid.arch),
            groups=1 if valid.layout is Layout.MASKED else valid.groups,
            mean=expected_m or 0,
            arch=valid.arch,
            problem=problem,
        )

    def edge(self, rows: int) -> int:
        """Return the edge of the bucket that a call with `rows` rows falls into."""
        mean = self.mean_of(rows)
        return self.edges[min(bisect_left(self.edges, mean), len(self.edges) - 1)]

    def mean_of(self, rows: int) -> int:
        """
        Return `mean` if the caller gave it; otherwise `rows` divided by `groups`, rounded up.
        """
        return self.mean or -(-rows // self.groups)

    def recorded(self, config: Config) -> Family:
        """
        Return this family with a tally if calls are recorded; `config` is the config that serves.
        """
        if self.arch is None or settings.record is None:
            return self
        from jitgen.plans import recorder

        tally = recorder.tally(self.arch, config if self.problem is None else self.problem)
        return replace(self, tally=tally)

    def counted(self, launch: Launch, rows: int) -> Launch:
        """
        Return `launch` for calls with `rows` rows; if the family has a tally, the launch counts its
        calls.
        """
        if self.tally is None or not rows:
            return launch
        return replace(launch, function=self.tally.counting(launch.function, self.mean_of(rows)))


def chosen(
    session: Session, problem: Any, arch: Arch, name: str
) -> tuple[Config, tuple[Config, ...]]:
    """
    Return the config for `problem`, and the candidates that may serve instead, best first.

    Raises:
        InputError: No kernel serves the argument called `name`.
    """
    try:
        choice = session.select(problem, arch)
    except UnsupportedConfig as error:
        raise InputError(name, str(error)) from None
    every = (candidate.config for candidate in choice.candidates)
    return choice.config, tuple(each for each in every if each != choice.config)


def nothing(*_: Any) -> None:
    """Launch nothing: there are no rows."""


def present(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Return the tensors that are not None, in their order."""
    return tuple([tensor for tensor in tensors if tensor is not None])


def new_launch(
    session: Session,
    key: Key,
    tensors: Mapping[str, Tensor],
    prepare: Callable[[], tuple[Launch, Family, int]],
    *,
    written: Collection[str] = (),
    in_place: Collection[str] = (),
    fixed: Collection[str] = (),
    unguarded: Collection[str] = (),
) -> Launch:
    """
    Return a new launch, cached under `key` if later calls may use it.

    Args:
        session: Session that caches the launch.
        key: Properties of the call that decide the launch.
        tensors: Tensors of the call by name, in the order in which warm calls pass them to `fits`.
        prepare: Checks the arguments; returns the launch, the family that it belongs to, and its
            rows; 0 where there is nothing to launch.
        written: Names of tensors that the call writes.
        in_place: Names of tensors that the written ones may be: see
            `jitgen.ops.dispatcher.require_apart`.
        fixed: Names of tensors whose sizes and strides the launch depends on, although they are not
            in the key.
        unguarded: Names of integer tensors without a guard. Their class is in the key, which is
            enough: they have neither a gradient nor a lazy sign, and the entry checks their device
            and type.

    Raises:
        InputError: torch's dispatcher would treat a tensor specially; or `prepare` finds a wrong
            argument.
    """
    epoch, doubts = session.epoch, session.doubts
    require_plain(tensors)
    bare, family, rows = prepare()
    require_apart(tensors, written, in_place)
    mark_written(tensors[name] for name in written if name in tensors)
    like = next(iter(tensors.values()))
    given = tuple(tensor for name, tensor in tensors.items() if name not in unguarded)
    names = [name for name in tensors if name not in unguarded]
    fits = guard(given, _places(names, fixed), _places(names, (*fixed, *written)))
    bare = replace(bare, fits=fits)
    family = replace(family.recorded(bare.config), fits=fits)
    launch = family.counted(bare, rows)
    # While a graph is captured no call looks for what is awaited, and memory may be the graph's:
    # the next call prepares again. So it does where what is awaited comes only if it is asked for.
    is_capturing = like.is_cuda and torch.cuda.is_current_stream_capturing()
    is_waiting = is_capturing and (launch.awaited is not None or launch.is_of_capture)
    is_waiting = is_waiting or (launch.awaited is not None and session.loader.is_stalled)
    # Nor is one remembered that was chosen while something could not be read: it may be another's.
    is_waiting = is_waiting or doubts != session.doubts
    # Nor is one remembered that a dispatch mode was told not to see: the next it is to see. Nor any
    # while values are looked at, which warm calls do not; nor one for a tensor that is given twice.
    is_seen = torch._C._len_torch_dispatch_stack() or settings.check or not fits(*given)
    if not (is_waiting or is_seen):
        _remember(session, key, given, family, rows, bare, launch)
        if launch.awaited is not None and epoch is not session.epoch:
            session.memo.pop(key, None)  # it may have arrived after we looked, before we remembered
    return launch


def _places(names: Sequence[str], wanted: Collection[str]) -> list[int]:
    """Return the indices of the `wanted` names."""
    return [place for place, name in enumerate(names) if name in wanted]


def similar(session: Session, key: Key, like: Tensor) -> tuple[Any, ...]:
    """
    Return the cached launches for calls that differ only in the rows of `like`, and cache them
    under `key`; none if several families are cached, and none of them has a launch of its bucket.

    Raises:
        KeyError: No family is cached, or the only one has no launch of this bucket. A call without
            rows has no bucket.
    """
    rows = like.shape[-2]
    families: tuple[Family, ...] = session.families[key[:ROWS] + key[ROWS + 1 :]]
    if len(families) == 1:
        (family,) = families
        found = (family.counted(family.launches[family.edge(rows) if rows else -1], rows),)
    else:
        edges = [family.edge(rows) if rows else -1 for family in families]
        found = tuple(
            family.counted(family.launches[edge], rows)
            for family, edge in zip(families, edges, strict=True)
            if edge in family.launches
        )
    if found:
        _keep(session.memo, key, found)
    return found


def _remember(
    session: Session,
    key: Key,
    given: tuple[Tensor, ...],
    family: Family,
    rows: int,
    bare: AnyLaunch,
    launch: AnyLaunch,
) -> None:
    """
    Cache the launch of a call under its key, and the bare launch, which counts no calls, for its
    bucket of rows.
    """
    _keep(session.memo, key, _in_front(launch, session.memo.get(key, ()), given))
    if launch.awaited is None and rows:
        place = key[:ROWS] + key[ROWS + 1 :]
        families: tuple[Family, ...] = session.families.get(place, ())
        known = next((each for each in families if each.fits(*given)), None)
        if known is None or known.tally is not family.tally:  # recording began, or ended
            _keep(session.families, place, _in_front(family, families, given))
            known = family
        known.launches[family.edge(rows)] = bare


_Fitting = TypeVar("_Fitting", bound=AnyLaunch | Family)


def _in_front(
    new: _Fitting, others: tuple[_Fitting, ...], given: tuple[Tensor, ...]
) -> tuple[_Fitting, ...]:
    """
    Return `new`, followed by the other launches that it does not replace; at most `KINDS` in all.
    """
    return (new, *(each for each in others[: KINDS - 1] if not each.fits(*given)))


def _keep(memory: dict[Any, Any], key: Key, value: Any) -> None:
    """Store `value` in a cache, which is cleared first if it is full."""
    if len(memory) >= MEMO_SIZE:
        memory.clear()
    memory[key] = value
