# SPDX-License-Identifier: Apache-2.0
"""
The description of a target: one object, `TARGET`, in the package ``jitgen.targets.NAME``, or an
entry point of the group ``jitgen.targets``.

For each operation a target has an object `Rules`: it says which configs the target can run, why it
cannot run others, which of them are candidates, how long each would take, and which sizes are
supported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from jitgen.config.config import Config
from jitgen.config.problem import Problem
from jitgen.support.frozen import frozen
from jitgen.targets.sums import SumOrder

_Config = TypeVar("_Config", bound=Config)
_Config_contra = TypeVar("_Config_contra", bound=Config, contravariant=True)
_Problem_contra = TypeVar("_Problem_contra", bound=Problem, contravariant=True)


class Refusal(Exception):
    """
    The error for a rule that a config or a problem breaks; it is raised and handled only inside the
    targets and their checks.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


def refuse_unless(condition: bool, code: str, reason: str) -> None:
    """Check a rule: if `condition` is false, refuse with `code` and `reason`."""
    if not condition:
        raise Refusal(code, reason)


class Derived(Protocol):
    """
    The numbers that follow from a legal config: a frozen dataclass of ints and booleans.

    Those that the template reads are part of every key.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Derives(Protocol[_Config_contra]):
    """The part of `Rules` that says which configs are legal."""

    def derive(self, config: _Config_contra) -> Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        ...


def _anything(_config: Config) -> bool:
    """Accept every config: for an operation with one template."""
    return True


class Template(NamedTuple):
    """
    Place of a target's template of one operation, and the parameters that it may use.

    Attributes:
        root: Folder that file names start from.
        entry: The file that is rendered, relative to `root`.
        takes: Whether a config's kernel is rendered from it.
        parameters: Exactly the parameters that its files read; None: as
            `jitgen.codegen.parameters.read` finds them.
    """

    root: Path
    entry: str
    parameters: frozenset[str] | None = None
    takes: Callable[[Any], bool] = _anything


@frozen
class Device:
    """
    A device that kernels are chosen for, with the constants of its cost models.

    Attributes:
        name: Its name for the driver or the operating system.
        num_sms: Number of multiprocessors; 1 for one thread of a CPU.
        clock_mhz: Clock under load, in MHz.
        dram_gbps: Rate of memory in 10^9 bytes per second, from the data sheet.
        l2_bytes: Size of the last cache before memory.
        is_proven: Whether the tests ran on it.
        proof: Text for `jitgen doctor` that says what was tested on the device and what was not;
            empty if nothing is known.
        constants: Further constants of the target's cost model, fitted for this device; None if the
            model derives them from the numbers above.
    """

    name: str
    num_sms: int
    clock_mhz: int
    dram_gbps: float
    l2_bytes: int
    is_proven: bool = False
    proof: str = ""
    constants: Any = field(default=None, compare=False, repr=False)


class Candidate(NamedTuple):
    """
    A candidate config with its predicted cost.

    Attributes:
        config: The config.
        cost: Predicted time of the call in microseconds.
        padding_ratio: Performed work divided by needed work; 1.0 means no padding.
        waves: Number of tiles that the busiest CTA computes.
        traffic_bytes: Bytes that cross DRAM.
        limiter: The slower of ``multiply`` and ``stream``.
    """

    config: Config
    cost: float
    padding_ratio: float
    waves: int
    traffic_bytes: int
    limiter: str


class Rules(Protocol[_Config, _Problem_contra]):
    """The rules of a target for one operation, with its classes of configs and problems."""

    generation: int
    """
    Version of the kernels' speed. Increase it with every change that makes measured times wrong:
    measurements of another generation are ignored, those of users as well as shipped ones.
    """

    alignment: int
    """Alignment of addresses and strides of tensors, in bytes."""

    row_edges: tuple[int, ...]
    """
    Upper end of each bucket, as mean rows of a group; the last bucket also has everything above it.
    """

    sums: SumOrder
    """
    Order in which kernels add up, and fields of a config that do not change it. A call with
    invariant numerics gets only kernels of this order (docs/numerics.md).
    """

    def derive(self, config: _Config) -> Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        ...

    def nearest(self, config: _Config) -> _Config | None:
        """Return the legal config nearest to a refused one; None if there is none."""
        ...

    def configs(self) -> Iterator[_Config]:
        """Yield every config of the target's space, legal or not."""
        ...

    def candidates(self, problem: _Problem_contra) -> tuple[_Config, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        ...

    def predict(
        self, problem: _Problem_contra, config: _Config, device: Device, num_sms: int
    ) -> Candidate:
        """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
        ...

    def confidence_note(self, problem: _Problem_contra, device: Device) -> str:
        """
        Return a note if the cost model was not fitted for the problem, otherwise an empty text. The
        note is part of a choice's reason.
        """
        ...

    def check_sizes(self, problem: _Problem_contra) -> None:
        """Raise a Refusal if kernels do not support the sizes of `problem`."""
        ...

    def templates(self) -> tuple[Template, ...]:
        """Return the templates of this operation; each config belongs to one of them."""
        ...

    def __hash__(self) -> int:
        """Hash by identity: choices are cached by their rules."""
        ...


AnyRules: TypeAlias = Rules[Any, Any]
"""Type of the rules of an operation that is only known by name."""


def legal_of(configs: Iterable[_Config], rules: Derives[_Config]) -> tuple[_Config, ...]:
    """Return the `configs` that are legal by `rules`, in their order."""
    return tuple(config for config in configs if _is_legal(config, rules))


def _is_legal(config: _Config, rules: Derives[_Config]) -> bool:
    try:
        rules.derive(config)
    except Refusal:
        return False
    return True


def rules_in(package: str, op: str, *arguments: str) -> AnyRules:
    """
    Return the rules for operation `op` of the target in `package`: an object of the class and
    module of that name, imported on first use.
    """
    module = importlib.import_module(f"{package}.{op}")
    rules: AnyRules = getattr(module, op.title().replace("_", ""))(*arguments)
    return rules


@runtime_checkable
class HasTable(Protocol):
    """
    Optional further rules: a table of kernels by rows, the same for every device of the target.
    """

    def of_table(self, problem: Any) -> Config:
        """Return the candidate of the table for `problem`."""
        ...


@runtime_checkable
class HasFamilies(Protocol):
    """Optional further rules: families of kernels, each with separate rules."""

    def family_of(self, problem: Any) -> AnyRules:
        """Return the rules of the kernels for `problem`."""
        ...


class HostLevel(StrEnum):
    """
    Processor features that the host part of a target's kernels may use; the levels themselves are
    in `jitgen.compile.toolchain`.
    """

    BASE = "base"
    """
    The features that all processors of the family have, for a host part that only passes arguments
    on.
    """

    OWN = "own"
    """All features of the compiling processor: for a host part that is the kernel itself."""


class Target(Protocol):
    """
    A target that kernels are compiled for: its devices, operations and rules.

    When the object of another distribution is loaded, it is checked for these names.
    """

    name: str
    """The compiler's name of the target: ``sm_90a``."""

    family: str
    """Word for targets whose templates are the same folder: ``sm90``."""

    is_gpu: bool
    """Whether the target's kernels run on a GPU."""

    compiler_options: tuple[str, ...]
    """Options of the compiler besides the calling convention: ``("--gpu-arch", "sm_90a")``."""

    host_level: HostLevel
    """The processors for which the host part of the kernels is compiled."""

    devices: tuple[Device, ...]
    """The known devices; the first one is used on machines without any of them."""

    operations: tuple[str, ...]
    """Names of the operations that the target has kernels for."""

    def runs_on(self, major: int, minor: int) -> bool:
        """Return whether a GPU of this compute capability runs its kernels."""
        ...

    def rules(self, op: str) -> AnyRules:
        """Return the rules of `op`, one of `operations`."""
        ...

    def __hash__(self) -> int:
        """Hash by identity: rules are cached by their target."""
        ...
