# SPDX-License-Identifier: Apache-2.0
"""
The operations of jitgen in torch's dispatcher: ``torch.ops.jitgen.*``.

They are registered with a `Library`, not with `custom_op`, which makes a call four times as
expensive. This module registers what all operations share: they run on CPUs and GPUs; none supports
vmap, and few have gradients, and each raises an error for this before it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch

from jitgen.config import Config
from jitgen.config.operation import loaded
from jitgen.errors import InputError
from jitgen.ops.dispatcher import refuse_tangents
from jitgen.ops.explicit_config import graph_name, of_graph
from jitgen.ops.tensors import refuse_gradients
from jitgen.runtime import devices
from jitgen.runtime.override import Override
from jitgen.runtime.session import current
from jitgen.support.frozen import frozen
from jitgen.support.moved import warn

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from jitgen.ops.call import Args, Call, Result, Validated

NAMESPACE = "jitgen"

_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_DEVICES = ("CPU", "CUDA")


@frozen
class Operation:
    """
    One operation in the form that torch registers.

    Attributes:
        schema: Name, arguments and results in torch's language; outputs are marked as written to.
        run: Takes the arguments of the schema, does the work and returns the results. The tensors
            are real ones.
        fake: Takes the same, checks it and returns results of the right shape and type without
            values. Sizes may be symbols.
        autograd: Takes the torch operation and `names`, and returns the function that autograd
            calls instead; None if there is no gradient.
        names: Names of the arguments in errors, in their order.
    """

    schema: str
    run: Callable[..., Any]
    fake: Callable[..., Any]
    names: tuple[str, ...]
    autograd: Callable[[Any, tuple[str, ...]], Callable[..., Any]] | None = None

    @property
    def name(self) -> str:
        """Part of the schema before the arguments: name and overload."""
        return self.schema[: self.schema.index("(")]


def register(operation: Operation) -> OpOverload:
    """
    Register `operation` with torch, which accepts it once per process; return the function that
    calls it.
    """
    name, _, overload = operation.name.partition(".")
    _library.define(operation.schema, tags=_TAGS)
    op: OpOverload = getattr(getattr(getattr(torch.ops, NAMESPACE), name), overload or "default")
    for device in _DEVICES:
        _library.impl(operation.name, operation.run, device)
    names = operation.names
    autograd = (operation.autograd or _without_gradients)(op, names)
    _library.impl(operation.name, autograd, "Autograd", with_keyset=True)
    full_name = f"{NAMESPACE}::{operation.name}"
    torch.library.register_fake(full_name, operation.fake, lib=_library)
    torch.library.register_vmap(full_name, _refuse_batches(names), lib=_library)
    return op


def _without_gradients(op: Any, names: tuple[str, ...]) -> Callable[..., Any]:
    """
    Return the function that autograd calls: it refuses tensors that need a gradient, and forwards
    other calls.
    """
    behind = torch._C._after_autograd_keyset
    name = op._schema.name.partition("::")[2]

    def call(keys: Any, *given: Any, **named: Any) -> Any:
        every = {**dict(zip(names, given, strict=False)), **named}
        refuse_tangents(every)
        refuse_gradients(every, name)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keys & behind, *given, **named)

    return call


def _refuse_batches(names: tuple[str, ...]) -> Callable[..., Any]:
    """Return the function that vmap calls; it raises an error."""

    def refuse(_info: Any, in_dims: tuple[Any, ...], *_given: Any, **_named: Any) -> Any:
        batched = next(
            (name for name, side in zip(names, in_dims, strict=False) if side is not None), names[0]
        )
        raise InputError(
            batched,
            "must not be batched by torch.vmap, for which no kernel has a dimension: call it "
            "outside of vmap, with more rows or groups",
        )

    return refuse


_TYPES = {
    "Tensor": "Tensor",
    "Weights": "Tensor",
    "torch.dtype": "ScalarType",
    "Size": "SymInt",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
}
"""Types of arguments, and their names in torch's schemas."""


def schema_of(call: Call[Any, Any, Any], updated: tuple[str, ...]) -> str:
    """
    Return the arguments of a call in torch's schema language, without outputs; those in `updated`
    are marked as written to.
    """
    names = call.graph_names
    return ", ".join(
        _argument(names.get(name, name), kind, default, "(z!)" if name in updated else "")
        for name, kind, default in call.in_graph()
    )


def _argument(name: str, kind: str, default: Any, written: str) -> str:
    kind, _, other = kind.partition(" | ")
    optional = "?" if other == "None" else ""
    of_torch = "str?" if name == "config" else f"{_TYPES[kind]}{written}{optional}"
    return f"{of_torch} {name}" + ("" if default is ... else f"={default!r}")


class Traced:
    """
    A call as operations of torch: one that returns its results, and one that writes to `out`. There
    is a third one if `out` may hold further results, and a fourth if the call may update arguments:
    it updates them and returns its results. It is separate, because torch can functionalise only
    operations that do not update arguments.

    In a graph a config is its kernel's name, because graphs hold no objects of ours.

    Attributes:
        operation: Returns the results.
        operation_out: Takes the tensors of `out` first, and returns the results that are new.
        operations: All operations, by overload.

    Args:
        call: The call.
        old: Name of the operation in graphs of an earlier version; it gives a warning when it runs.
    """

    def __init__(self, call: Call[Any, Any, Any], old: str = "") -> None:
        self._call = call
        self._old = old
        name = old or call.name
        self._names = [name for name, _, _ in call.in_graph()]
        self._sizes = [name for name, kind, _ in call.in_graph() if kind.startswith("Size")]
        self._gradients: Any = loaded(call.gradients) if call.gradients else None
        self.operations = {"default": self._registered(name, "", ())}
        self.operations["out"] = self._registered(name, ".out", call.outputs, call.updated)
        if call.more_outputs:
            every, overload = (*call.outputs, *call.more_outputs), call.more_outputs[-1]
            self.operations[overload] = self._registered(name, f".{overload}", every, call.updated)
        if call.updated:
            overload = call.updated[-1]
            self.operations[overload] = self._registered(name, f".{overload}", (), call.updated)
        self.operation, self.operation_out = self.operations["default"], self.operations["out"]

    def _registered(
        self, name: str, overload: str, outputs: tuple[str, ...], updated: tuple[str, ...] = ()
    ) -> Any:
        """
        Register the operation that writes the results called `outputs` and those of the arguments
        that are `updated`; return it.
        """
        call, outs = self._call, len(outputs)
        written = [f"Tensor({x}!) {each}" for x, each in zip("abcde", outputs, strict=False)]
        new = len(call.outputs) + len(call.more_outputs) - outs
        return register(
            Operation(
                schema=f"{name}{overload}({', '.join((*written, schema_of(call, updated)))}) -> "
                + _results(new),
                run=lambda *given: _returned(self._run(given[:outs], given[outs:], updated)[outs:]),
                fake=lambda *given: _returned(
                    self._fake(given[:outs], given[outs:], updated)[outs:]
                ),
                names=(*outputs, *self._names),
                autograd=None if self._gradients is None else self._gradients.called,
            )
        )

    def record(self, args: Any) -> Any:
        """
        Call the operation through torch's dispatcher.

        Raises:
            InputError: An argument is wrong, as without a tracer; or a tensor needs a gradient, or
                is batched by vmap.
        """
        if not torch._C._is_tracing():  # its sizes are tensors; the operation itself sees numbers
            self._check(args)
        operation = self.operations[self._call.overload(args)]
        device = getattr(args, self._call.like).device
        return put(self._call, operation, args, self.name_of(args.config, device))

    def differentiated(self, args: Any) -> Any:
        """
        Do the work of the public function under autograd, without the dispatcher, because no tracer
        is active.

        Raises:
            InputError: A tensor needs a gradient that does not exist, or an argument is wrong.
        """
        values = {name: getattr(args, name) for name in self._names}
        self._gradients.require(args._asdict())
        found = self._gradients.applied(partial(self._run_with, args), values)
        return self._call.of_results(args, found if isinstance(found, tuple) else (found,))

    def _run_with(self, args: Any, *values: Any) -> Any:
        named = dict(zip(self._names, values, strict=True)) | {"config": args.config}
        return _returned(self._call.to_results(args, self._call.public(**named)))

    def name_of(self, config: Config | Override | None, device: torch.device) -> str | None:
        """
        Return the text that names `config` in a graph: the kernel's name on `device`.

        Raises:
            InputError: It is not a config.
        """
        if config is None:
            return None
        arch = devices.find(device, current.get(), self._call.like).arch
        return graph_name(config, self._call.config, arch)

    def _args(self, out: tuple[Any, ...], values: tuple[Any, ...], updated: tuple[str, ...]) -> Any:
        """
        Return the arguments of the call; torch omits values that are the default of the schema.

        Raises:
            InputError: The call would write to an argument that the schema of the operation marks
                as read only.
        """
        call = self._call
        named = dict(zip(self._names, values, strict=False))
        for name in call.updated:
            if name not in updated and named.get(name) is not None:
                raise InputError(
                    name, f"is written by torch.ops.{NAMESPACE}.{call.name}.{name} alone: call that"
                )
        if named.get("config") is not None:
            arch = devices.find(named[call.like].device, current.get(), call.like).arch
            named["config"] = of_graph(named["config"], call.config, arch)  # type: ignore[arg-type]
        return call.of_graph(named | {"out": call.out_of(out) if out else None})

    def _run(
        self, out: tuple[Any, ...], values: tuple[Any, ...], updated: tuple[str, ...]
    ) -> tuple[Any, ...]:
        if self._old:
            warn(f"torch.ops.jitgen.{self._old}", self._call.name)
        args = self._args(out, values, updated)
        return self._call.to_results(args, self._call.public(**args._asdict()))

    def _fake(
        self, out: tuple[Any, ...], values: tuple[Any, ...], updated: tuple[str, ...]
    ) -> tuple[Any, ...]:
        args = self._args(out, values, updated)
        return self._call.new_results(args, self._check(args))

    def _check(self, args: Any) -> Any:
        """
        Check the arguments as a call without a tracer does; return the validated form.

        If a rule depends on a size that is known only when there are values, return None; then the
        operation checks when it runs.
        """
        call = self._call
        unknown = [name for name in self._sizes if isinstance(getattr(args, name), torch.SymInt)]
        args = args._replace(**dict.fromkeys(unknown))
        try:
            valid = call.validate(args, current.get(), has_memory=False)
        except RuntimeError as error:
            from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

            if not isinstance(error, GuardOnDataDependentSymNode):
                raise
            return None
        if args.config is not None and valid is not None:
            call.require_fit(args.config, args, valid)
        return valid


traced = cache(Traced)
"""Return the operations of a call; they are registered at the first request."""


def put(
    call: Call[Args, Validated, Result], operation: Any, args: Args, config: str | None
) -> Result:
    """Call one of the operations of `call`, with the name of a config; return the result."""
    values = call.to_graph(args, config)
    _, parts = call.written(args.out)
    found = operation(*parts, *values)
    if found is None:
        out: Result = args.out
        return out
    return call.of_results(args, (*parts, *(found if isinstance(found, tuple) else (found,))))


def _results(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def _returned(tensors: tuple[Any, ...]) -> Any:
    """
    Return results in the form that torch expects from an operation: a tensor, several tensors, or
    nothing.
    """
    if len(tensors) == 1:
        return tensors[0]
    return tensors or None
