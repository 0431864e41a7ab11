# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `route` and `sort_pairs`: each rule has its own error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from jitgen.config import Config
from jitgen.config.config import DType
from jitgen.config.route import (
    COMPUTED,
    MOST_EXPERTS,
    MOST_TOP_K,
    SCORES,
    GroupScoring,
    RouteProblem,
    Scoring,
)
from jitgen.errors import InputError
from jitgen.formats.protocol import TORCH
from jitgen.ops import tensors as common
from jitgen.ops.numbers import SOFTCAPS, is_number, is_softcap
from jitgen.ops.route.results import Routing, Sorting
from jitgen.ops.tensors import AnyValidated, check_size, device_of
from jitgen.runtime.override import Override
from jitgen.runtime.session import Session
from jitgen.support.frozen import frozen

_SCORES = {TORCH[dtype]: dtype for dtype in SCORES}
_MOST = 2**31 - 1
_OP = "route"


class Arguments(NamedTuple):
    """The arguments of one call of `route`, as the caller gave them."""

    logits: Tensor
    top_k: int
    scoring: str = "softmax"
    correction_bias: Tensor | None = None
    expert_groups: int = 1
    top_groups: int = 1
    renormalize: bool = True
    routed_scaling_factor: float = 1.0
    first_expert: int = 0
    local_experts: int | None = None
    out: Routing | None = None
    config: Config | Override | None = None
    group_scoring: str = "top2"
    softcap: float | None = None
    token_ids: Tensor | None = None
    hash_table: Tensor | None = None
    load: Tensor | None = None

    @property
    def numbers(self) -> tuple[int | float, ...]:
        """Arguments of a kernel that are numbers."""
        choice = (self.expert_groups, self.top_groups, int(self.renormalize))
        softcap = () if self.softcap is None else (float(self.softcap),)
        return (*choice, float(self.routed_scaling_factor), *softcap, self.first_expert)


class SortArguments(NamedTuple):
    """The arguments of one call of `sort_pairs`, as the caller gave them."""

    topk_ids: Tensor
    experts: int
    first_expert: int = 0
    local_experts: int | None = None
    out: Sorting | None = None
    config: Config | Override | None = None

    @property
    def numbers(self) -> tuple[int | float, ...]:
        """Arguments of a kernel that are numbers."""
        return (self.first_expert,)


@frozen
class Validated(AnyValidated):
    """
    Sizes and types of a valid call; a tracer's sizes may be symbols.

    Attributes:
        tokens: T.
        experts: E.
        top_k: k.
        local_experts: G.
        scoring: Function that turns logits into scores.
        scores_dtype: Type of the logits; None if experts are given.
        bias: Whether there is a correction bias.
        expert_groups: Equal groups of experts.
        group_scoring: How groups are scored.
        softcap: Whether logits are bounded.
        hashed: Whether a table gives the experts of each token id.
        load: Whether pairs are counted for each expert.
    """

    op = _OP

    tokens: int
    experts: int
    top_k: int
    local_experts: int
    scoring: Scoring
    scores_dtype: DType | None
    bias: bool
    expert_groups: int
    group_scoring: GroupScoring = GroupScoring.TOP2
    softcap: bool = False
    hashed: bool = False
    load: bool = False

    @property
    def sorted_experts(self) -> int:
        """Number of experts that pairs are sorted by; see `RouteProblem`."""
        return self.local_experts

    def problem(self) -> RouteProblem:
        """Return the problem that the selector gets."""
        return RouteProblem(
            m=self.tokens,
            experts=self.experts,
            top_k=self.top_k,
            scoring=self.scoring,
            scores_dtype=self.scores_dtype,
            bias=self.bias,
            expert_groups=self.expert_groups,
            group_scoring=self.group_scoring,
            softcap=self.softcap,
            hashed=self.hashed,
            load=self.load,
            local_experts=self.local_experts,
        )


def validate(
    args: Arguments | SortArguments,
    session: Session,
    *,
    has_memory: bool = True,  # noqa: ARG001  # no kernel asks for addresses of its own
) -> Validated:
    """
    Check the arguments and return the sizes, types and target of the call.

    Raises:
        InputError: An argument is wrong; the checks run in the order of this function.
    """
    name, like = args._fields[0], args[0]
    is_sorted = isinstance(args, SortArguments)
    device = device_of(Validated.op, name, like, session)
    of = "(T, k)" if is_sorted else "(T, E)"
    common.require(name, like, rank=(2, of))
    experts = int(like.shape[1])  # a model's; tracers take it for a constant
    if experts == 0:
        raise InputError(name, f"must have at least one column (got shape {tuple(like.shape)})")
    common.require(name, like, contiguous=1)
    if isinstance(args, SortArguments):
        if like.dtype is not torch.int32:  # int64 ones are converted before
            raise InputError(name, f"must be int32 or int64 (got {like.dtype})")
        if not like.is_contiguous():
            raise InputError(name, f"must be contiguous (got strides {like.stride()})")
        top_k, scoring = experts, Scoring.GIVEN
        require_few(name, top_k)
        experts = number("experts", args.experts, 1)
    else:
        common.require(name, like, [*_SCORES], arch=device.arch)
        scoring = scoring_of(args.scoring)
        require_choice(name, experts)
        top_k = number("top_k", args.top_k, 1)
        check_choice(args, experts, top_k)
        _check_bias(args, experts)
        _check_table(args, top_k)
        if args.load is not None:
            common.require(
                "load",
                args.load,
                [torch.int32],
                shape=((experts,), "one for each expert"),
                like=(name, like.device),
                contiguous=0,
            )
    first = first_expert(args.first_expert)
    local = experts if args.local_experts is None else args.local_experts
    local = number("local_experts", local, 1)
    if first and args.local_experts is None:
        raise InputError("local_experts", f"is required with first_expert {first} (got None)")
    if first + local > experts:
        raise InputError(
            "local_experts",
            f"must end at the last of {experts} experts, or before (got {local} from {first} on)",
        )
    require_room("experts" if args.local_experts is None else "local_experts", local)
    choice: dict[str, Any] = {"bias": False, "expert_groups": 1}
    if isinstance(args, Arguments):
        choice = _choice(args)
    valid = Validated(
        device=device,
        tokens=like.shape[0],
        experts=experts,
        top_k=top_k,
        local_experts=local,
        scoring=scoring,
        scores_dtype=_SCORES.get(like.dtype),
        **choice,
    )
    check_size(valid, name if valid.expert_groups == 1 else "expert_groups")
    if args.out is not None:
        _check_out(args, valid)
    require_differentiable(args._asdict())
    return valid


def require_differentiable(given: Mapping[str, Any]) -> None:
    """
    Check that autograd needs no gradient except that of logits.

    Args:
        given: Arguments of `route` or `sort_pairs` by name; the tensors of `out` may be given by
            their own names.

    Raises:
        InputError: Autograd needs another gradient, or one through `out`.
    """
    written = {**given, **({} if given.get("out") is None else given["out"]._asdict())}
    written = {name: written.get(name) for name in Routing._fields}
    others = {name: each for name, each in given.items() if name != "logits"}
    common.refuse_gradients(others | written, _OP, "experts are chosen, not weighted, by it")
    if any(each is not None for each in written.values()):
        why, advice = "what is written to out has none", "leave out `out`, "
        common.refuse_gradients(given, _OP, why, advice)


def check_choice(args: Any, experts: int, top_k: int) -> None:
    """
    Require at least as many experts as are chosen.

    Args:
        args: `Arguments`, or a `jitgen.RouterConfig`, which has the same fields.
        experts: Experts of all devices.
        top_k: Experts of a token.

    Raises:
        InputError: There are fewer experts, or another argument of the choice is wrong.
    """
    groups = number("expert_groups", args.expert_groups, 1)
    kept = number("top_groups", args.top_groups, 1)
    if experts % groups or (groups > 1 and experts < 2 * groups):
        raise InputError(
            "expert_groups",
            f"must divide the {experts} experts into groups of two or more (got {groups})",
        )
    if kept > groups:
        raise InputError("top_groups", f"must be at most the {groups} groups (got {kept})")
    if args.group_scoring not in tuple(GroupScoring):
        allowed = ", ".join(GroupScoring)
        raise InputError("group_scoring", f"must be one of {allowed} (got {args.group_scoring!r})")
    size = experts // groups
    if top_k > kept * size:
        raise InputError(
            "top_k", f"must be at most the {kept * size} experts that are kept (got {top_k})"
        )
    require_few("top_k", top_k)
    if type(args.renormalize) is not bool:
        raise InputError("renormalize", f"must be True or False (got {args.renormalize!r})")
    factor = args.routed_scaling_factor
    if not is_number(factor):
        raise InputError(
            "routed_scaling_factor", f"must be a finite number of float32 (got {factor!r})"
        )
    softcap = args.softcap
    if softcap is not None and not is_softcap(softcap):
        least, most = SOFTCAPS
        raise InputError(
            "softcap", f"must be None or a number from {least:g} to {most:g} (got {softcap!r})"
        )


def _check_bias(args: Arguments, experts: int) -> None:
    """Require a bias for each expert, if there is one."""
    if args.correction_bias is not None:
        common.require(
            "correction_bias",
            args.correction_bias,
            [torch.float32],
            shape=((experts,), "one for each expert"),
            like=("logits", args.logits.device),
            contiguous=0,
        )


def _check_table(args: Arguments, top_k: int) -> None:
    """Require a token id for each row and experts for each token id, or neither."""
    ids, table = args.token_ids, args.hash_table
    for name, given, other in (("token_ids", ids, table), ("hash_table", table, ids)):
        if given is None and other is not None:
            raise InputError(name, "is required: token_ids and hash_table come together")
    if ids is None or table is None:
        return
    if args.correction_bias is not None or args.expert_groups > 1:
        raise InputError(
            "hash_table", "has the experts of each token: leave out correction_bias, expert_groups"
        )
    like = ("logits", args.logits.device)
    tokens = (args.logits.shape[0],)
    common.require("token_ids", ids, [torch.int32, torch.int64], like=like, contiguous=0)
    common.require("token_ids", ids, shape=(tokens, "one for each token"))
    common.require("hash_table", table, [torch.int32], rank=(2, "(V, k)"), like=like, contiguous=1)
    if table.shape[1] != top_k:
        raise InputError(
            "hash_table", f"must have top_k = {top_k} columns (got shape {tuple(table.shape)})"
        )


def _choice(args: Arguments) -> dict[str, Any]:
    """Return the fields of a `Validated` that say how experts are chosen."""
    return {
        "bias": args.correction_bias is not None,
        "expert_groups": args.expert_groups,
        "group_scoring": GroupScoring(args.group_scoring),
        "softcap": args.softcap is not None,
        "hashed": args.hash_table is not None,
        "load": args.load is not None,
    }


def shapes(valid: Validated) -> dict[str, tuple[int, ...]]:
    """Return the shape of each result by its name, in the order of a `Routing`."""
    pairs = (valid.tokens, valid.top_k)
    of_choice = {"topk_weights": pairs, "topk_ids": pairs}
    return {
        **({} if valid.scores_dtype is None else of_choice),
        "offs": (valid.local_experts,),
        "permutation": (valid.tokens * valid.top_k,),
        "inverse": pairs,
    }


def _check_out(args: Arguments | SortArguments, valid: Validated) -> None:
    """Require dense tensors of the right shapes and types to write results to."""
    kind = Sorting if isinstance(args, SortArguments) else Routing
    if not isinstance(args.out, kind):
        raise InputError("out", f"must be a {kind.__name__} (got {type(args.out).__name__})")
    for name, shape in shapes(valid).items():
        tensor, called = getattr(args.out, name), f"out.{name}"
        common.require(called, tensor)
        dtype = torch.float32 if name == "topk_weights" else torch.int32
        common.require(
            called,
            tensor,
            [dtype],
            shape=(shape, "as it is computed"),
            like=(args._fields[0], args[0].device),
        )
        if not tensor.is_contiguous():
            raise InputError(called, f"must be contiguous (got strides {tensor.stride()})")


def number(name: str, value: object, least: int) -> int:
    """Return `value` if it is an int32 integer of at least `least`; otherwise raise InputError."""
    if type(value) is not int or value < least:
        raise InputError(name, f"must be an integer of at least {least} (got {value!r})")
    if value > _MOST:
        raise InputError(name, f"must be at most {_MOST}, as ids are int32 (got {value})")
    return value


def require_few(name: str, top_k: int) -> None:
    """
    Refuse more experts of a token than a kernel can choose; `name` is the argument with the number.
    """
    if top_k > MOST_TOP_K:
        raise InputError(name, f"must be of at most {MOST_TOP_K} experts a token (got {top_k})")


def require_choice(name: str, experts: int) -> None:
    """Refuse more experts than a kernel can choose from; `name` is the argument with the number."""
    if experts > MOST_EXPERTS:
        raise InputError(
            name,
            f"must be of at most {MOST_EXPERTS} experts (got {experts}): choose among more with "
            "torch, and sort the pairs of each device's share with jitgen.sort_pairs",
        )


def require_room(name: str, local: int) -> None:
    """
    Refuse more local experts than a kernel can sort by; `name` is the argument with the number.
    """
    if local > MOST_EXPERTS:
        raise InputError(
            name,
            f"must be at most {MOST_EXPERTS} on one device (got {local}): give first_expert and "
            "local_experts, the share of each",
        )


def first_expert(value: object) -> int:
    """
    Return `value`, the number of an expert.

    Raises:
        InputError: `value` is not the number of an expert.
    """
    return number("first_expert", value, 0)


def scoring_of(value: object) -> Scoring:
    """Return the `Scoring` that `value` names; raise InputError for other values."""
    if value not in COMPUTED:
        raise InputError("scoring", f"must be one of {', '.join(COMPUTED)} (got {value!r})")
    return Scoring(value)  # type: ignore[arg-type]
