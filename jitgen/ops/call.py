# SPDX-License-Identifier: Apache-2.0
"""
The description of a public operation: one object of a subclass of `Call`.

The arguments are a NamedTuple, whose names, types and defaults are written once. From it and the
class follow the operation of torch's dispatcher and its schema, the operation that torch.compile
and other tracers record (`jitgen.ops.tracing`), and the steps from a new call to a launch. The
public function with its warm path is in the module ``call`` of each operation. It is written out,
because its time on the host counts, and ends with ``CALL.run(Arguments(...), key)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from jitgen.config import Arch, Config
from jitgen.errors import InputError, ResourceError
from jitgen.ops.dispatcher import is_traced, refuse_tangents
from jitgen.ops.explicit_config import explicit_config
from jitgen.ops.launch import AnyLaunch, Family, Kernel, Key, chosen, new_launch, nothing
from jitgen.ops.tensors import needs_gradient, tensors_of
from jitgen.runtime.session import Session, current
from jitgen.selection.choice import edges_of
from jitgen.settings import settings
from jitgen.support.boundary import boundary
from jitgen.targets.legality import require


class _OutOfMemory(ResourceError, torch.OutOfMemoryError):
    """The device has no memory left for an output; the error is one of jitgen and of torch."""


@contextmanager
def calling(op: str) -> Iterator[None]:
    """
    Convert errors that leave a call of `op` to errors of jitgen; out of memory is an error of torch
    as well.
    """
    try:
        with boundary(op):
            yield
    except ResourceError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError):
            raise _OutOfMemory(str(error)) from error.__cause__
        raise


Args = TypeVar("Args", bound=Any)
"""The NamedTuple of a call's arguments."""

Validated = TypeVar("Validated", bound=Any)
"""Sizes, types and target of a valid call."""

Result = TypeVar("Result")


class Call(Generic[Args, Validated, Result]):
    """
    The description of a public operation.

    Attributes:
        name: The operation in ``torch.ops.jitgen``.
        called: Name of the operation in errors; empty: `name`.
        arguments: The class of its arguments. The field `out` has the output tensors, the field
            `config` the explicit config.
        config: The class of its configs.
        like: Name of the tensor that decides the device. Its rows are the rows of the call, unless
            `rows_of` names another argument.
        rows_of: The argument whose rows are those of the call; empty: `like`.
        outputs: Names of the results that `out` holds.
        more_outputs: Names of further results that `out` may hold; results that it does not hold
            are new tensors.
        updated: Tensors besides `out` that are read and written.
        in_place: Tensors that `out` may be: see `jitgen.ops.dispatcher.require_apart`.
        fixed: Tensors on whose sizes and strides the launch depends, although keys do not contain
            them: see `launch.new_launch`.
        unguarded: Integer tensors that guards do not check: see `launch.new_launch`.
        graph_names: Names of arguments in torch's graphs, where these differ. They never change,
            because saved graphs are read by them.
        gradients: Autograd of the operation, as ``MODULE:NAME``; empty if it has no gradient.
        tensors_of: Takes arguments; returns their tensors by name, in the order of `arguments`.
        validate: Takes arguments, the session that serves them, and `has_memory`: whether tensors
            have addresses (those of a tracer have none). Returns the sizes, types and target of the
            call, or raises an InputError for the first broken rule.
        without_rows: Function that is called instead of a kernel if there are no rows.

    Args:
        public: The public function, which takes the fields of `arguments` by their names.
    """

    name: ClassVar[str]
    called: ClassVar[str] = ""
    arguments: ClassVar[Any]
    config: ClassVar[type[Config]]
    like: ClassVar[str]
    rows_of: ClassVar[str] = ""
    outputs: ClassVar[tuple[str, ...]] = ("out",)
    more_outputs: ClassVar[tuple[str, ...]] = ()
    updated: ClassVar[tuple[str, ...]] = ()
    in_place: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[tuple[str, ...]] = ()
    unguarded: ClassVar[tuple[str, ...]] = ()
    graph_names: ClassVar[dict[str, str]] = {}
    gradients: ClassVar[str] = ""
    tensors_of: ClassVar[Callable[..., dict[str, Tensor]]] = staticmethod(tensors_of)
    validate: ClassVar[Callable[..., Any]]
    without_rows: ClassVar[Callable[..., None]] = staticmethod(nothing)

    def __init__(self, public: Callable[..., Result]) -> None:
        self.public = public

    def run(self, args: Args, key: Key) -> Result:
        """
        Do the work of the public function, with every check, and cache the launch under `key`.

        A call that torch traces, or of which autograd needs a gradient, goes through an operation
        of torch instead, and its launch is not cached.

        Raises:
            InputError: An argument is wrong, or does not fit the explicit config.
            JitgenError: The kernel is missing and cannot be compiled; see `KernelLoader.get`. It is
                a torch.OutOfMemoryError as well if the device has no memory left.
        """
        if is_dynamo_compiling():  # torch.compile reads this: one operation is all it sees
            from jitgen.ops.tracing import compiled

            return compiled.call(self, args)
        tensors = self.tensors_of(args)
        if is_traced(tensors.values()):
            from jitgen.ops.tracing.library import traced

            return traced(self).record(args)  # type: ignore[no-any-return]
        if self.gradients and needs_gradient(tensors.values()):
            from jitgen.ops.tracing.library import traced

            refuse_tangents(tensors)
            return traced(self).differentiated(args)  # type: ignore[no-any-return]
        with calling(self.called or self.name):
            return self.launched(args, tensors, key)

    def launched(self, args: Args, tensors: dict[str, Tensor], key: Key) -> Result:
        """Launch a kernel, and cache the launch under `key`; the call is not traced."""
        session = current.get()
        launch = new_launch(
            session,
            key,
            tensors,
            lambda: self.prepare(args, session),
            written=[name for name in tensors if self.is_written(name)],
            in_place=self.in_place,
            fixed=self.fixed,
            unguarded=self.unguarded,
        )
        return self.start(launch, args)

    def is_written(self, name: str) -> bool:
        """
        Say whether the call writes a tensor, named as in `tensors_of`: it belongs to `out` or to
        `updated`.
        """
        return name in self.updated or name.partition(".")[0].partition("[")[0] == "out"

    def prepare(self, args: Args, session: Session) -> tuple[AnyLaunch, Family, int]:
        """
        Validate `args`, choose a config unless the caller gives one, and get a kernel.

        Returns:
            The launch, the family that it belongs to, and its rows; 0 where there is nothing to
            launch.
        """
        valid: Validated = self.validate(args, session)
        if settings.check:
            self.check_values(args, valid)
        return self.chosen(args, valid, session)

    def chosen(
        self, args: Args, valid: Validated, session: Session
    ) -> tuple[AnyLaunch, Family, int]:
        """
        Choose a config for validated arguments, or take the explicit one, and get its kernel;
        return the launch, its family and its rows.
        """
        arch: Arch = valid.arch
        asked, family = args.config, Family(arch=arch)
        wanted: Config
        neighbours: tuple[Config, ...] = ()
        if asked is None:
            problem = self.problem(args, valid)
            wanted, neighbours = chosen(session, problem, arch, self.like)
            family = self.family(problem, args, valid)
        else:  # an explicit config serves any number of rows, and is never replaced
            wanted = self.require_fit(asked, args, valid)
        rows = self.rows(args, valid)
        function, served = self.without_rows, wanted
        if rows:
            function, served = valid.device.entry(session, asked or wanted, neighbours)
        kernel: Kernel = {
            "function": function,
            "tail": valid.device.tail,
            "config": served,
            "asked": asked,
            "awaited": None if served == wanted else wanted,
        }
        return self.launch(args, valid, kernel), family, rows

    # What each subclass overrides.

    def check_values(self, args: Args, valid: Validated) -> None:
        """
        Check values on the device that kernels do not check, if JITGEN_CHECK is on; the base class
        checks nothing.
        """

    def problem(self, args: Args, valid: Validated) -> Any:
        """Return the problem that the selector gets."""
        raise NotImplementedError

    def family(self, problem: Any, args: Args, valid: Validated) -> Family:
        """Return the family of calls that differ from this one only in their rows."""
        return Family(edges=edges_of(problem, valid.arch), arch=valid.arch, problem=problem)

    def rows(self, args: Args, valid: Validated) -> int:
        """Return the number of rows to compute; if it is 0, nothing is launched."""
        rows: int = valid.rows
        return rows

    def launch(self, args: Args, valid: Validated, kernel: Kernel) -> AnyLaunch:
        """Return the launch of a chosen kernel."""
        raise NotImplementedError

    def start(self, launch: Any, args: Args) -> Result:
        """Call the launch with the tensors of the call; return the result."""
        raise NotImplementedError

    def kind(self, args: Args, valid: Validated) -> Mapping[str, object]:
        """Return the fields that the problem and the config of the call have in common, by name."""
        raise NotImplementedError

    def fitting(self, config: Any, args: Args, valid: Validated) -> Config:
        """Return the config that this call would need, with the tiling of `config`."""
        fitted: Config = replace(config, **self.kind(args, valid))
        return fitted

    def require_fit(self, asked: object, args: Args, valid: Validated) -> Any:
        """
        Return the config of the explicit config `asked`, which must be legal and fit the call.

        Raises:
            InputError: `asked` is not a config of this operation, or does not fit the call.
            UnsupportedConfig: The target cannot run it.
        """
        config: Any = explicit_config(asked, self.config, valid.arch)
        wanted: Any = self.fitting(config, args, valid)
        if config != wanted:
            raise InputError(
                "config",
                f"must be for what is asked, {wanted.to_name()} (got one for {config.to_name()})",
            )
        require(config, valid.arch)
        return config

    # Direct calls of kernels: see `jitgen.ops.direct`.

    def check_direct(self, config: Any, arch: Arch, given: tuple[object, ...]) -> None:
        """
        Check the arguments of a direct call of the entry of `config`: everything that the entry
        does not check itself.
        """
        from jitgen.ops import direct

        direct.check(self, config, arch, given)

    def entry_tensors(self, config: Any) -> tuple[str, ...]:
        """Return the names of the tensors of an entry; each is an argument of this call."""
        raise NotImplementedError

    def check_entry(self, args: Args, valid: Validated) -> None:
        """
        Check conditions that hold for entries only, not for the public call; the base class checks
        nothing.
        """

    # Arguments and results in graphs of torch.

    def in_graph(self) -> list[tuple[str, str, Any]]:
        """
        Return name, type and default of each argument of the operation, in the order of its schema;
        ``...`` means no default. Saved graphs hold the arguments in this order: a new argument
        comes last.
        """
        kinds = self.arguments.__annotations__
        defaults = self.arguments._field_defaults
        return [
            (name, getattr(kind, "__forward_arg__", kind), defaults.get(name, ...))
            for name, kind in kinds.items()
            if name != "out"
        ]

    def to_graph(self, args: Args, config: str | None) -> tuple[Any, ...]:
        """
        Return the values of the arguments in the order of `in_graph`; `config`, the name of a
        kernel, replaces the config.
        """
        return tuple(
            [
                config if name == "config" else value
                for name, value in zip(args._fields, args, strict=True)
                if name != "out"
            ]
        )

    def of_graph(self, named: dict[str, Any]) -> Args:
        """Return the arguments of the public call; the inverse of `to_graph`."""
        return self.arguments(**named)  # type: ignore[no-any-return]

    def new_results(self, args: Args, valid: Validated | None) -> tuple[Tensor, ...]:
        """
        Return results of the right shapes and types without values, for a tracer.

        `valid` is None if a rule depends on a size that is known only when there are values.
        """
        raise NotImplementedError

    def to_results(self, args: Args, result: Any) -> tuple[Tensor, ...]:
        """Return the tensors of a result; none of them may be an argument."""
        return (result,) if isinstance(result, Tensor) else tuple(result)

    def of_results(self, args: Args, tensors: tuple[Tensor, ...]) -> Result:
        """Return the result that consists of these tensors."""
        return tensors[0]  # type: ignore[return-value]

    def out_of(self, tensors: tuple[Tensor, ...]) -> Any:
        """Return the argument `out` that consists of these tensors, in the order of `outputs`."""
        return tensors[0]

    def parts_of(self, out: Any) -> tuple[Tensor, ...]:
        """Return the tensors of `out`."""
        return (out,) if isinstance(out, Tensor) else tuple(out)

    def written(self, out: Any) -> tuple[str, tuple[Tensor, ...]]:
        """
        Return the name of the torch overload that writes to `out`, and the tensors of `out`;
        without `out`, ``default`` and no tensors.
        """
        if out is None:
            return "default", ()
        parts = self.parts_of(out)
        return "out" if len(parts) == len(self.outputs) else self.more_outputs[-1], parts

    def overload(self, args: Any) -> str:
        """
        Return the name of the torch overload for a call with `args`. It depends on which arguments
        the call writes to: none, `out`, or those in `updated`.
        """
        found, _ = self.written(args.out)
        is_updating = any(getattr(args, name) is not None for name in self.updated)
        return self.updated[-1] if found == "default" and is_updating else found
