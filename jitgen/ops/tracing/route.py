# SPDX-License-Identifier: Apache-2.0
"""
`route` and `sort_pairs` as operations of torch: each one that returns its results, and one that
writes them to `out`.

In a graph a config is its kernel's name, because graphs hold no objects of ours.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jitgen.config.route import RouteConfig
from jitgen.ops.forced import graph_name, of_graph
from jitgen.ops.route import call as eager
from jitgen.ops.route.dispatch import require_fit
from jitgen.ops.route.results import Routing, Sorting
from jitgen.ops.route.validate import Arguments, shapes, validate
from jitgen.ops.tracing.library import Operation, register
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import current

_CHOICE = (
    "Tensor scores, int top_k, str scoring='softmax', Tensor? bias=None, int expert_groups=1, "
    "int top_groups=1, bool renormalize=True, float scale=1.0, "
)
_LOCAL = "int first_expert=0, int? local_experts=None, str? config=None"
_ROUTE = _CHOICE + _LOCAL
_SORT = "Tensor topk_ids, int experts, " + _LOCAL


def _names(schema: str) -> tuple[str, ...]:
    return tuple(part.split("=")[0].split()[-1] for part in schema.split(", "))


def _written(names: tuple[str, ...]) -> str:
    """Return tensors that are written to, as a schema has them."""
    letters = zip("abcde", names, strict=False)
    return ", ".join(f"Tensor({letter}!) {name}" for letter, name in letters)


def record(given: Arguments, config: RouteConfig | Override | None) -> Routing | Sorting:
    """
    Do what `route` or `sort_pairs` says, through torch's dispatcher.

    Raises:
        InputError: An argument is wrong, as without a tracer; or a tensor needs a gradient, or is
            batched by vmap.
    """
    if not torch._C._is_tracing():  # its sizes are tensors; the operation itself sees numbers
        _check(given, config)
    return call(given, name_of(config, given.like.device, given.name))


def call(given: Arguments, config: str | None) -> Routing | Sorting:
    """Call the operation, with the name of a config; return its results."""
    local = (given.first_expert, given.local_experts, config)
    if given.scores is None:
        arguments: tuple[Any, ...] = (given.topk_ids, given.experts, *local)
        if given.out is None:
            return Sorting(*sort_operation(*arguments))
        sort_operation_out(*given.out, *arguments)
        return given.out
    choice = (given.scoring, given.bias, given.expert_groups, given.top_groups)
    arguments = (given.scores, given.top_k, *choice, given.renormalize, given.scale, *local)
    if given.out is None:
        return Routing(*route_operation(*arguments))
    route_operation_out(*given.out, *arguments)
    return given.out


def name_of(config: RouteConfig | Override | None, device: torch.device, name: str) -> str | None:
    """
    Return what stands for `config` in a graph: the kernel's name on `device`, that of the argument
    called `name`.

    Raises:
        InputError: It is no config.
    """
    if config is None:
        return None
    return graph_name(config, RouteConfig, devices.find(device, current.get(), name).arch)


def _check(given: Arguments, config: RouteConfig | Override | None) -> dict[str, tuple[int, ...]]:
    """Raise what a call without a tracer would; return the shapes of the results."""
    facts = validate(given, current.get())
    if config is not None:
        require_fit(config, facts)
    return shapes(facts)


_DEFAULTS: dict[str, Any] = {
    "scoring": "softmax",
    "bias": None,
    "expert_groups": 1,
    "top_groups": 1,
    "renormalize": True,
    "scale": 1.0,
    "first_expert": 0,
    "local_experts": None,
    "config": None,
}
"""Torch leaves out what is the schema's default."""


def _arguments(schema: str, given: tuple[Any, ...]) -> dict[str, Any]:
    """Return what the public function takes."""
    names = _names(schema)
    defaults = {name: value for name, value in _DEFAULTS.items() if name in names}
    named = {**defaults, **dict(zip(names, given, strict=False))}
    if named["config"] is not None:
        like = named[names[0]]
        arch = devices.find(like.device, current.get(), names[0]).arch
        named["config"] = of_graph(named["config"], RouteConfig, arch)
    return named


def _route(*given: Any) -> Routing:
    return eager.route(**_arguments(_ROUTE, given))


def _route_out(*given: Any) -> None:
    count = len(Routing._fields)
    eager.route(**_arguments(_ROUTE, given[count:]), out=Routing(*given[:count]))


def _sort(*given: Any) -> Sorting:
    return eager.sort_pairs(**_arguments(_SORT, given))


def _sort_out(*given: Any) -> None:
    count = len(Sorting._fields)
    eager.sort_pairs(**_arguments(_SORT, given[count:]), out=Sorting(*given[:count]))


def _fake(schema: str, given: tuple[Any, ...], out: Routing | Sorting | None) -> list[Tensor]:
    """Return results of the right shapes and types without values."""
    named = _arguments(schema, given)
    config = named.pop("config")
    arguments = Arguments(**named, out=out)
    found = _check(arguments, config)
    types = {"topk_weights": torch.float32}
    return [
        arguments.like.new_empty(shape, dtype=types.get(name, torch.int32))
        for name, shape in found.items()
    ]


def _fake_route(*given: Any) -> tuple[Tensor, ...]:
    return tuple(_fake(_ROUTE, given, None))


def _fake_route_out(*given: Any) -> None:
    count = len(Routing._fields)
    _fake(_ROUTE, given[count:], Routing(*given[:count]))


def _fake_sort(*given: Any) -> tuple[Tensor, ...]:
    return tuple(_fake(_SORT, given, None))


def _fake_sort_out(*given: Any) -> None:
    count = len(Sorting._fields)
    _fake(_SORT, given[count:], Sorting(*given[:count]))


def _results(count: int) -> str:
    return f"({', '.join(['Tensor'] * count)})"


route_operation = register(
    Operation(
        schema=f"route({_ROUTE}) -> {_results(len(Routing._fields))}",
        run=lambda *given: tuple(_route(*given)),
        fake=_fake_route,
    )
)
route_operation_out = register(
    Operation(
        schema=f"route.out({_written(Routing._fields)}, {_ROUTE}) -> ()",
        run=_route_out,
        fake=_fake_route_out,
    )
)
sort_operation = register(
    Operation(
        schema=f"sort_pairs({_SORT}) -> {_results(len(Sorting._fields))}",
        run=lambda *given: tuple(_sort(*given)),
        fake=_fake_sort,
    )
)
sort_operation_out = register(
    Operation(
        schema=f"sort_pairs.out({_written(Sorting._fields)}, {_SORT}) -> ()",
        run=_sort_out,
        fake=_fake_sort_out,
    )
)
