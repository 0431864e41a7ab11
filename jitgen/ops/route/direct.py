# SPDX-License-Identifier: Apache-2.0
"""Arguments of direct calls of the kernels of `route`: see `jitgen.ops.direct`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config import Arch
from jitgen.config.route import RouteConfig, Scoring
from jitgen.errors import InputError
from jitgen.ops import direct
from jitgen.ops import tensors as common
from jitgen.ops.dispatcher import mark_written, require_apart
from jitgen.ops.route.call import CALL
from jitgen.ops.route.results import Routing, Sorting
from jitgen.ops.route.validate import Arguments, SortArguments, first_expert, validate
from jitgen.runtime.session import current

_FIRST = "first_expert"
_CHOICE = ("expert_groups", "top_groups", "renormalize", "scale")


def check(config: RouteConfig, arch: Arch, arguments: tuple[Any, ...]) -> None:
    """
    Check the arguments of a direct call: scores or ids, further inputs of `config`, the results,
    the workspace if a second launch sorts, and numbers. `renormalize` is 0 or 1.

    Raises:
        InputError: An argument is wrong; the message says which, what is required, and what was
            given.
    """
    session, is_given = current.get(), config.scoring is Scoring.GIVEN
    choice = () if is_given else (*_CHOICE, *(["softcap"] if config.softcap else []))
    numbers = (*choice, _FIRST)
    found = direct.read(config, arch, session, arguments, config.arguments, numbers)
    if config.load:  # which is read, too, and so not one of the operation's results
        require_apart({name: found[name] for name in config.arguments}, ("load",))
        mark_written((found["load"],))
    first, offs = found[_FIRST], found["offs"]
    common.require("offs", offs, rank=(1, "(G,)"))
    local = offs.shape[0]
    first_expert(first)
    if is_given:
        results = Sorting(*(found[name] for name in Sorting._fields))
        args: Arguments | SortArguments = SortArguments(
            topk_ids=found["ids"],
            experts=first + local,  # the number of experts elsewhere is not an argument
            first_expert=first,
            local_experts=local,
            out=results,
        )
    else:
        args = _of_scores(config, found, local)
    valid = validate(args, session)
    CALL.require_fit(config, args, valid)
    direct.require_rows(args._fields[0], valid.tokens)
    if config.tiling.is_spread:
        _check_workspace(config, found["workspace"], arguments[-1], local)


def _of_scores(config: RouteConfig, found: dict[str, Any], local: int) -> Arguments:
    """Convert arguments of an entry to those of the public function."""
    ids, renormalize = found["topk_ids"], found["renormalize"]
    common.require("topk_ids", ids, rank=(2, "(T, k)"))
    if type(renormalize) not in (int, bool) or renormalize not in (0, 1):
        raise InputError("renormalize", f"must be 0 or 1 (got {renormalize!r})")
    return Arguments(
        logits=found["scores"],
        top_k=ids.shape[1],
        scoring=str(config.scoring),
        correction_bias=found.get("bias"),
        expert_groups=found["expert_groups"],
        top_groups=found["top_groups"],
        renormalize=bool(renormalize),
        routed_scaling_factor=found["scale"],
        first_expert=found[_FIRST],
        local_experts=local,
        group_scoring=str(config.group_scoring),
        softcap=found.get("softcap"),
        token_ids=found.get("token_ids"),
        hash_table=found.get("hash_table"),
        load=found.get("load"),
        out=Routing(*(found[name] for name in Routing._fields)),
    )


def _check_workspace(config: RouteConfig, workspace: Tensor, num_ctas: int, local: int) -> None:
    """Require a workspace with a row for each cluster that counts pairs."""
    common.require("workspace", workspace, [torch.int32])
    shape = (config.tiling.counts(num_ctas), local)
    common.require("workspace", workspace, shape=(shape, "a row for each cluster"))
    if not workspace.is_contiguous():
        raise InputError("workspace", f"must be contiguous (got strides {workspace.stride()})")
