# SPDX-License-Identifier: Apache-2.0
"""
The description of an operation: one object, `OPERATION`, in the package ``jitgen.ops.NAME``, or an
entry point of the group ``jitgen.ops``.

The modules and objects that it names are imported on first use, so that a kernel can be found and
loaded without a tensor library.
"""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from jitgen.config.plugins import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from jitgen.config import Arch, Config
    from jitgen.config.problem import Problem


class Result(NamedTuple):
    """
    The values that a kernel wrote and the right ones, in rows and columns.

    Attributes:
        name: Name of the argument.
        found, expected: Values, numpy, float32 [rows, columns].
        is_wrong: Whether each value is wrong, bool [rows, columns].
        group: The group of each row, -1 for padding rows [rows].
        row: The number of each row in its group [rows].
    """

    name: str
    found: Any
    expected: Any
    is_wrong: Any
    group: Any
    row: Any


class Excuse(NamedTuple):
    """
    A branch of a kernel that no problem reaches; `jitgen.verify` does not require it.

    Attributes:
        condition: Part of the condition of an ``if`` of the generated source, as `ast.unparse`
            writes it.
        reason: Why it never holds.
        function: Name of a function that is called only in the body of that ``if``; empty: there is
            none.
    """

    condition: str
    reason: str
    function: str = ""


class Operation(NamedTuple):
    """
    One operation.

    Attributes:
        name: Its name, which is also that of its template and of the function that is compiled.
        config: ``MODULE:CLASS`` of its config, a `jitgen.config.Config`.
        problem: ``MODULE:CLASS`` of its problem: a `jitgen.config.config.Part` that is a
            `jitgen.config.problem.Problem`.
        samples: Module for verifying kernels, with ``Sizes`` (with `of` and `parse`); ``make``,
            which returns a call with its expected results; ``unreachable``, which lists the
            branches that no call can reach; and ``tile``, the rows and columns of a CTA's work. An
            example is `jitgen.ops.grouped_gemm.cases`. Empty if kernels cannot be verified.
        arguments: Names of the first arguments of the compiled function, for the emulator's
            findings and direct calls, unless a config has others; further arguments have numbers.
        results: Arguments that the function writes and never reads, so that their previous values
            do not matter.
        beside: ``MODULE:FUNCTION``, which takes a problem, a target, a function that chooses and
            the name of a device or None, and returns configs of kernels that calls may launch
            besides the one chosen for the problem. Empty: there are none.
        direct: ``MODULE:FUNCTION``, which takes a config, a target and a tuple of the arguments of
            the compiled function, and raises `InputError` for arguments that the function does not
            check itself. Empty: kernels cannot be called directly, see
            `jitgen.runtime.kernel.Kernel`.
    """

    name: str
    config: str
    problem: str
    samples: str = ""
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    beside: str = ""
    direct: str = ""

    @property
    def config_type(self) -> type[Config]:
        """Class of the operation's configs."""
        found: type[Config] = loaded(self.config)
        return found

    @property
    def problem_type(self) -> type[Problem]:
        """Class of the operation's problems."""
        found: type[Problem] = loaded(self.problem)
        return found

    def launched_beside(
        self, problem: Problem, arch: Arch, choose: Callable[..., Any], device: str | None = None
    ) -> tuple[Config, ...]:
        """
        Return the kernels that calls of `problem` may launch on a device besides the chosen one.
        `choose` is called like `jitgen.select`; `device` is the name that it gets.
        """
        return loaded(self.beside)(problem, arch, choose, device) if self.beside else ()


def loaded(place: str) -> Any:
    """Import and return the object ``MODULE:NAME``; the name may have dots."""
    module, _, name = place.partition(":")
    return attrgetter(name)(importlib.import_module(module))


def operation(name: str) -> Operation:
    """
    Return the operation called `name`.

    Raises:
        ConfigError: There is no operation of this name; the message lists all of them.
    """
    return OPERATIONS.get(name)
