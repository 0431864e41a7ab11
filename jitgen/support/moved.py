# SPDX-License-Identifier: Apache-2.0
"""
The old names of renamed modules, objects, arguments and methods that other code may still use.

A plug-in imports the protocol of operations and their configs, and defines methods of both. A
process of another version sends a task by its module, or starts a process of this environment. A
pickle of weights names the module of their class, an exported graph operations; plans, recordings
and records name the operation of a problem. `KINDS`, `MOVED`, `NAMES`, `ARGUMENTS`, `FORMATS`,
`OPERATIONS` and `RENAMED` are the whole list; `DROPPED_IN` is the version without it.
"""

from __future__ import annotations

import importlib
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

DROPPED_IN = "2.0"

_Class = TypeVar("_Class", bound=type)

KINDS = {"silu_mul_quantize": "activation_quantize"}
"""Old name of an operation, which files and commands have and kernels begin with: its name now."""

_OPERATIONS = (
    *("combine", "grouped_gemm", "grouped_gemm_wgrad", "moe_fc2_dense", "permute_quantize"),
    *("quantize", "route", "silu_mul_quantize", "unpack_weights"),
)
_PARTS = ("call", "derivatives", "dispatch", "numbers", "reference", "samples", "validate")

MOVED = {
    "jitgen.ops.protocol": "jitgen.config.operation",
    **{
        f"jitgen.ops.{name}.config": f"jitgen.config.{KINDS.get(name, name)}"
        for name in _OPERATIONS
    },
    "jitgen.config.silu_mul_quantize": "jitgen.config.activation_quantize",
    "jitgen.ops.silu_mul_quantize": "jitgen.ops.activation_quantize",
    **{
        f"jitgen.ops.silu_mul_quantize.{part}": f"jitgen.ops.activation_quantize.{part}"
        for part in _PARTS
    },
    "jitgen.formats.prepared": "jitgen.formats.prepacked",
    "jitgen.recording": "jitgen.plans",
    "jitgen.recording.files": "jitgen.plans.recording",
    "jitgen.runtime.prewarm": "jitgen.plans.prewarm",
    "jitgen.runtime.task": "jitgen.plans.task",
    "jitgen.server.foreman": "jitgen.server.supervisor",
    "jitgen.server.task": "jitgen.server.compile_task",
}
"""Old name of a module: its name now."""

_OF_GEMM = {"KernelConfig": "GroupedGemmConfig", "Problem": "GroupedGemmProblem"}
_OF_FC2 = {
    "MoeFc2DenseConfig": "MoEFc2DenseConfig",
    "MoeFc2DenseProblem": "MoEFc2DenseProblem",
}
_OF_ACTIVATION = {
    "SiluMulQuantizeConfig": "ActivationQuantizeConfig",
    "SiluMulQuantizeProblem": "ActivationQuantizeProblem",
}
_OF_WEIGHTS = {
    "PreparedWeights": "PrepackedWeights",
    "prepare_mxfp4": "prepack_mxfp4",
    "prepare_mxfp4_from": "prepack_mxfp4_from",
}

NAMES = {
    "jitgen": _OF_GEMM | _OF_FC2 | _OF_ACTIVATION | KINDS,
    "jitgen.config.activation_quantize": _OF_ACTIVATION | {"Scales": "Format"},
    "jitgen.config.grouped_gemm": _OF_GEMM,
    "jitgen.config.moe_fc2_dense": _OF_FC2,
    "jitgen.formats.prepacked": _OF_WEIGHTS,
    "jitgen.quantize": _OF_WEIGHTS
    | {"load_prepared": "load_prepacked", "save_prepared": "save_prepacked"},
    "jitgen.ops.activation_quantize.call": KINDS,
    "jitgen.ops.activation_quantize.reference": KINDS,
    "jitgen.reference": KINDS,
}
"""For each module, the old names of what it has, and the names that replace them."""

_GATE = {"limit": "swiglu_limit", "alpha": "swiglu_alpha"}
_FORMAT = {"activations": "activation_format"}

ARGUMENTS = {
    "route": {
        "scores": "logits",
        "scale": "routed_scaling_factor",
        "bias": "correction_bias",
    },
    "activation_quantize": _GATE | {"scale_granularity": "format", "scale": "global_scale"},
    "moe_fc2_dense": {"alpha": "router_weights"},
    "permute_quantize": {
        "scale_granularity": "format",
        "form": "format",
        "scale": "global_scale",
    },
    "moe": _GATE | _FORMAT,
    "moe_experts": _GATE | _FORMAT,
    "from_checkpoint": _GATE | _FORMAT,
    "MoEConfig": _GATE,
    "ExpertWeights": _FORMAT,
    "Workspace": {"tokens": "max_tokens"},
    "of": {"tokens": "max_tokens"},  # Workspace.of
}
"""For each function, the old names of its arguments, and the names that replace them."""


class _Missing:
    def __repr__(self) -> str:
        return "..."  # what `help` shows as the default


MISSING: Any = _Missing()
"""The default of an argument that is required, and may be given by its old name."""

FORMATS = {"mx32": "mxfp8", "nv16": "nvfp4"}
"""Old words of `permute_quantize` for a format: its words now."""

OPERATIONS = {"grouped_gemm_prepared": "grouped_gemm_prepacked", **KINDS}
"""Old name of an operation in ``torch.ops.jitgen``, which saved graphs hold: its name now."""

RENAMED = {"words": "to_name", "of_words": "parse_name", "doubt": "confidence_note"}
"""Old name of a method that plug-ins define, of a config or of rules: its name now."""


def kernel_renamed(name: str) -> str:
    """Return the name of a kernel with the present name of its operation, without a warning."""
    return source_renamed(name, name)


def source_renamed(text: str, name: str) -> str:
    """
    Return the source of the kernel that was called `name` with the present name of its operation.
    """
    for old, new in KINDS.items():
        if name.startswith(f"{old}_"):
            return text.replace(old, new)
    return text


def renamed(module: str, name: str) -> Any:
    """
    Return the object that `module` had under the old name `name`, and warn; the module's
    ``__getattr__`` calls this.

    Raises:
        AttributeError: There was no such name.
    """
    new = NAMES[module].get(name)
    if new is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warn(f"{module}.{name}", new, stacklevel=4)
    return getattr(sys.modules[module], new)


def with_new_names(call: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """
    Return the arguments that a call sets, by their present names, and warn of each old name.

    Args:
        call: The function.
        given: Its ``locals()`` as it begins; `old` in them has the keyword arguments for which it
            has no parameter.

    Raises:
        TypeError: It never had such an argument, or it is given twice.
    """
    from inspect import signature

    old, parameters = given.pop("old"), signature(call).parameters
    is_set = {
        name: value
        for name, value in given.items()
        if name in parameters and value is not parameters[name].default  # not in them: cls
    }
    return is_set | _by_new_names(call.__name__, old, is_set, stacklevel=5)


def _by_new_names(
    call: str, old: dict[str, Any], given: Collection[str], stacklevel: int
) -> dict[str, Any]:
    """
    Return the arguments `old` by their present names, and warn; raises TypeError for one that is
    unknown or also in `given`.
    """
    found = {}
    for name, value in old.items():
        new = ARGUMENTS[call].get(name)
        if new is None:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
        if new in given or new in found:
            raise TypeError(f"{call}() got {new!r} twice, once by its old name {name!r}")
        warn(f"{name}= of {call}", f"{new}=", stacklevel)
        found[new] = value
    return found


def with_old_fields(cls: _Class) -> _Class:
    """
    Let a class accept its fields by their old names as well, in its constructor and as attributes,
    with a warning.
    """
    made: Any = cls
    name, init = made.__name__, made.__init__
    names = ARGUMENTS[name]

    @wraps(init)
    def by_new_names(self: Any, **named: Any) -> None:
        old = [each for each in named if each in names]  # torch.compile follows this
        if old:
            taken = {each: named.pop(each) for each in old}
            named |= _by_new_names(name, taken, named, stacklevel=4)
        init(self, **named)

    def old_field(self: Any, asked: str) -> Any:
        new = names.get(asked)
        if new is None:
            raise AttributeError(f"{name!r} object has no attribute {asked!r}")
        warn(f"{name}.{asked}", new)
        return getattr(self, new)

    made.__init__, made.__getattr__ = by_new_names, old_field
    return cls


def take_old_methods(kind: type) -> None:
    """Give a class of a plug-in the methods of `RENAMED` that it defines by their old names."""
    for old, new in RENAMED.items():
        if old in vars(kind) and new not in vars(kind):
            warn(f"{kind.__qualname__}.{old}", new)
            setattr(kind, new, vars(kind)[old])


def warn(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that `old` is now called `new`; `stacklevel` is that of `warnings.warn`."""
    import warnings

    text = f"{old} is now {new}; jitgen {DROPPED_IN} drops the old name"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)


class MovedFinder:
    """
    Import hook for the modules of `MOVED`; the last of ``sys.meta_path``, and also the first once
    an old name was imported. Otherwise Python would find the modules of a package that moved, which
    have their old names, below it, and import them a second time.
    """

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return how to import `name` from where it is now; None for any other name."""
        if name not in MOVED:
            return None
        from importlib.util import spec_from_loader

        return spec_from_loader(name, cast("Loader", MovedFinder))

    @staticmethod
    def create_module(_spec: ModuleSpec) -> ModuleType | None:
        """Let the import system make an empty module, which `exec_module` replaces."""
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Replace `module`, an old name, by the module that it was moved to, and warn."""
        old = module.__name__
        warn(old, MOVED[old])
        if sys.meta_path[0] is not MovedFinder:
            sys.meta_path.insert(0, MovedFinder)
        sys.modules[old] = importlib.import_module(MOVED[old])
