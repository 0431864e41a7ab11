# SPDX-License-Identifier: Apache-2.0
"""
The config of a kernel: everything that changes the generated source, and nothing else.

Sizes (rows, columns, the number of groups, the number of SMs) are never part of it: one kernel
serves every shape. This module has its vocabulary (element types, scale granularities, layouts),
the base class of its parts, which checks their values, and its exact JSON form. Each operation
defines its own fields.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Self

from jitgen.config import grammar, kernel_names
from jitgen.config.plugins import OPERATIONS, Arch
from jitgen.errors import ConfigError
from jitgen.support.moved import RENAMED, take_old_methods
from jitgen.support.text import shown


class DType(grammar.Vocabulary):
    """An element type, under the name that configs, kernel names and the command line use."""

    E4M3 = "e4m3"

    E4M3X2 = "e4m3x2"
    """bfloat16 as two e4m3 parts, a row of high parts and a row of low ones; only for a."""

    E2M1 = "e2m1"

    INT4 = "int4"
    """-8 to 7; only for prepacked weights."""

    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"

    @property
    def bits(self) -> int:
        """Bits of one element; of e4m3x2 those of both parts."""
        return _BITS[self]

    @property
    def values_per_element(self) -> int:
        """Values in one element of a tensor: 2 of e2m1 share a byte."""
        return max(1, 8 // self.bits)

    @property
    def torch_name(self) -> str:
        """Attribute of the torch module that holds the same type, for example ``float8_e4m3fn``."""
        return _TORCH[self]


_BITS = {
    DType.E4M3: 8,
    DType.E4M3X2: 16,
    DType.E2M1: 4,
    DType.INT4: 4,
    DType.BF16: 16,
    DType.F16: 16,
    DType.F32: 32,
}
_TORCH = {
    DType.E4M3: "float8_e4m3fn",
    DType.E4M3X2: "float8_e4m3fn",
    DType.E2M1: "float4_e2m1fn_x2",
    DType.INT4: "int32",
    DType.BF16: "bfloat16",
    DType.F16: "float16",
    DType.F32: "float32",
}


class ScaleGranularity(grammar.Vocabulary):
    """How many values share one scale."""

    TENSOR = "tensor"
    """One float32 for all of a, one for each group's b."""

    ROW = "row"
    """One float32 for each row of a, one for each row (output column) of b."""

    BLOCK128 = "block128"
    """One float32 for each 1x128 of a and each 128x128 of b."""

    MX32 = "mx32"
    """One power of two (UE8M0) for each 1x32 of a and of b, in atoms of 128 rows x 4."""

    NV16 = "nv16"
    """One e4m3 for each 1x16 of a and of b, in the same atoms, and a float32 for each group."""

    GROUP32 = "group32"
    """One bfloat16 or float16 for each 1x32 of b, prepacked in its blocks."""

    GROUP128 = "group128"
    """One bfloat16 or float16 for each 1x128 of b, prepacked in its blocks."""

    NONE = "none"
    """No scales; only for an a of bfloat16."""

    @property
    def operands(self) -> tuple[DType, ...]:
        """Element types of a and b that may have these scales."""
        return _SCALED.get(self, (DType.E4M3, DType.BF16, DType.F16, DType.F32))


_SCALED = {
    ScaleGranularity.MX32: (DType.E4M3, DType.E2M1),
    ScaleGranularity.NV16: (DType.E2M1,),
    ScaleGranularity.GROUP32: (DType.INT4,),
    ScaleGranularity.GROUP128: (DType.INT4,),
}
FLOAT_SCALES = (ScaleGranularity.TENSOR, ScaleGranularity.ROW, ScaleGranularity.BLOCK128)
"""Granularities of float32 scales."""

SCALES = (*FLOAT_SCALES, ScaleGranularity.MX32, ScaleGranularity.NV16)
"""Granularities of b's scales that are a separate tensor."""


class Layout(grammar.Vocabulary):
    """How the rows of a belong to groups."""

    RAGGED = "ragged"
    """Groups lie one after the other without padding; ``offs`` holds their cumulative ends."""

    CONTIGUOUS = "contiguous"
    """One group id for each row; a group starts at a multiple of 128 rows, -1 marks padding."""

    MASKED = "masked"
    """Every group owns M_max rows, of which the first ``masked_m[g]`` are valid."""


class BLayout(StrEnum):
    """
    How b lies in memory.

    `PLAIN` and `N_MAJOR` are strides of an ordinary tensor. All others are weights that were
    reordered when they were loaded, for Hopper's kernels: see `jitgen.formats.prepacked`. They say
    how a kernel applies the scales. The digit is the version of the layout: weights of other
    versions are refused.

    A NaN among scales takes no time in kernels. A NaN of a power of two stays the byte 255, which
    kernels decode to infinity, and its values are set to zero, so the product is a NaN.
    """

    PLAIN = "plain"
    """(G, N, K), K contiguous, not reordered."""

    EXACT1 = "exact1"
    """Decoded to e4m3 exactly; sums along K are multiplied by their scale in float32."""

    FOLDED1 = "folded1"
    """
    Decoded to e4m3 times the scale relative to the largest of 128 along K, with a table for each
    32.
    """

    WIDE1 = "wide1"
    """Decoded to bfloat16 times the scale."""

    N_MAJOR = "nmajor"
    """(G, N, K), N contiguous: the transpose of weights (G, K, N), of 16 bits or more."""

    @property
    def is_prepacked(self) -> bool:
        """Whether weights were reordered, together with their scales."""
        return self not in {BLayout.PLAIN, BLayout.N_MAJOR}


class Numerics(StrEnum):
    """Guarantee of a call for the bits of a row."""

    FAST = "fast"
    """The fastest kernel, with any order of sums; equal calls give equal bits."""

    INVARIANT = "invariant"
    """
    The bits of a row depend only on the row and its weights, not on batch, layout, tile or kernel.
    """


SCALE_BLOCK = 128
"""Values along K (and, for b, along N) that share one scale in ``block128``."""


class Part:
    """
    Base of configs, of their parts and of problems: type checks at construction and an exact JSON
    form.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __post_init__(self) -> None:
        for name, rules in _fields(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            if value is not None or not rules["is_optional"]:
                found = _checked(name, rules, value)
                if found is not value:
                    object.__setattr__(self, name, found)

    def values(self) -> dict[str, Any]:
        """Return the values of the fields, by name."""
        return {name: getattr(self, name) for name in _fields(type(self))}  # type: ignore[arg-type]

    def to_name(self) -> str:
        """
        Return this object's words in a kernel's name, one for each field, joined by ``_``: see
        `grammar`.
        """
        return grammar.name_of(self)

    def to_json(self) -> dict[str, Any]:
        """Return the exact JSON form: only objects, strings, ints, booleans and null."""
        return {
            name: value.to_json() if isinstance(value, Part) else _plain(value)
            for name, value in self.values().items()
        }

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """
        Return the part that `to_json` wrote; a field with a default may be left out.

        Raises:
            ConfigError: `document` is not an object, or has an unknown, missing or bad field.
        """
        specs = _fields(cls)  # type: ignore[arg-type]
        if not isinstance(document, dict):
            raise ConfigError(f"{cls.__name__} must be a JSON object with {', '.join(specs)}")
        if unknown := sorted(set(document) - set(specs)):
            raise ConfigError(
                f"{cls.__name__} has no field {shown(unknown[0])}; allowed: {', '.join(specs)}"
            )
        required = {
            spec.name
            for spec in dataclasses.fields(cls)
            if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        }
        if missing := [name for name in specs if name in required - document.keys()]:
            raise ConfigError(f"{cls.__name__} needs {', '.join(missing)}")
        values = {
            name: specs[name]["type"].from_json(value) if _is_part(specs[name]["type"]) else value
            for name, value in document.items()
        }
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}: {error}") from None


@cache
def _fields(part: type[Part]) -> dict[str, Mapping[str, Any]]:
    """
    Return the metadata of each field of a class, by name; cached, because each construction of a
    part reads them.
    """
    return {spec.name: spec.metadata for spec in dataclasses.fields(part)}


def _is_part(kind: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, Part)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, StrEnum) else value


def _checked(name: str, rules: Any, value: Any) -> Any:
    """Return `value` converted by `rules`, or raise the ConfigError that names the field."""
    kind = rules["type"]
    if kind is int:
        return _size(name, value, rules["least"], rules["most"])
    if type(value) is kind and not rules["allowed"]:
        return value
    if kind is bool or _is_part(kind):
        raise ConfigError(f"{name} must be a {kind.__name__} (got {shown(value)})")
    try:
        found = kind(value)
    except ValueError:
        found = None
    if found is None or (rules["allowed"] and found not in rules["allowed"]):
        allowed = ", ".join(members_of(rules))
        raise ConfigError(f"{name} must be one of {allowed} (got {shown(value)})")
    return found


def members_of(rules: Mapping[str, Any]) -> tuple[StrEnum, ...]:
    """Return the members of an enumeration that a field may be, as its metadata say."""
    return rules["allowed"] or (*rules["type"],)


def _size(name: str, value: Any, least: int, most: int | None) -> int:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least} (got {shown(value)})")
    if most is not None and value > most:
        limit = f"{most:,}" if most >= 10_000 else most
        raise ConfigError(f"{name} must be at most {limit} (got {value})")
    return value


def of(  # noqa: PLR0913  # each is one thing to say
    kind: type,
    *,
    is_optional: bool = False,
    least: int = 1,
    most: int | None = None,
    word: str = "",
    always: bool | None = None,
    after: str = "",
    reads: str = "",
    allowed: tuple[StrEnum, ...] = (),
    **options: Any,
) -> Any:
    """
    Return a dataclass field with a checked value, which becomes a word of a config's name.

    Args:
        kind: Type of the value; the text of an enumeration's member is converted to the member.
        is_optional: Whether it may be None.
        least: Least value of an integer.
        most: Most value of an integer; None: any.
        word: Prefix of the value in names; the whole word for a flag.
        always: Whether a name has it even for the default; None: yes, unless the value is an
            integer, a flag or optional.
        after: Name of the field after whose word its own word comes; empty: the order of
            declaration.
        reads: Regular expression of the values that names may have; empty: any value.
        allowed: Members of an enumeration that the value may be; none: all.
        options: Further options of `dataclasses.field`.
    """
    rules = {"type": kind, "is_optional": is_optional, "least": least, "most": most}
    rules["allowed"] = allowed
    words = {"word": word, "always": always, "after": after, "reads": reads}
    return field(metadata=rules | words, **options)


MAX_SIZE = 2**48
"""
Largest size in a problem. No memory is larger, and products of two sizes are exact enough as
floats.
"""

EXAMPLE = "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_90a"


class Config(Part):
    """
    One kernel, before its target is known. The config of an operation is a subclass: a frozen,
    keyword-only dataclass with slots, whose fields are made by `jitgen.config.config.of`.

    Attributes:
        op: Name of the operation.
    """

    __slots__ = ()
    op: ClassVar[str]
    prefix: ClassVar[str] = ""
    """First words of kernels' names that do not come from a field; empty: there are none."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not RENAMED.keys().isdisjoint(vars(cls)):
            take_old_methods(cls)

    def to_name(self) -> str:
        """
        Return the middle part of the kernel's name: words of ``[a-z0-9]`` joined by ``_``,
        different for every config of the operation. Default values are left out if the name stays
        unique.
        """
        return grammar.name_of(self, self.prefix)

    @property
    @abstractmethod
    def short(self) -> str:
        """Short text that distinguishes this config from others for the same problem."""

    @classmethod
    def parse_name(cls, name: str) -> Self | None:
        """
        Return the config whose `to_name` is `name`; None if `name` is not a name of this class.
        """
        document = grammar.parsed(cls, name, cls.prefix)
        if document is None:
            return None
        config = cls.from_json(document)
        return config if config.to_name() == name else None

    @property
    def arguments(self) -> tuple[str, ...]:
        """
        Names of the first arguments of the compiled function, for the emulator's findings and
        direct calls; further arguments have numbers.
        """
        return OPERATIONS.get(self.op).arguments

    @property
    def settled(self) -> tuple[str, ...]:
        """Names of arguments that no earlier kernel still writes when this one starts."""
        return ()

    def parameters(self) -> dict[str, Any]:
        """Return the template's parameters by name: integers, booleans and words."""
        return grammar.parameters(self)

    def name(self, arch: Arch | str) -> str:
        """
        Return the readable, unique name, which is a valid C symbol and file name; `parse` is the
        inverse.
        """
        return f"{self.op}_{self.to_name()}_{arch}"

    def to_json(self) -> dict[str, Any]:
        """Return the exact JSON form: only objects, strings, ints, booleans and null."""
        return {"op": self.op, **Part.to_json(self)}

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """
        Return the config that `to_json` wrote, of any operation. A field with a default may be left
        out, and ``op`` if the class implies it.

        Raises:
            ConfigError: `document` is not an object, or has an unknown, missing or bad field.
        """
        if not isinstance(document, dict):
            raise ConfigError(f"a config must be a JSON object (got {shown(document)})")
        own = getattr(cls, "op", None)
        fields = dict(document)
        op = fields.pop("op", own)
        op = OPERATIONS.present(op) if isinstance(op, str) else op
        if not isinstance(op, str) or (own is not None and op != own):
            expected = own or ", ".join(OPERATIONS.names())
            raise ConfigError(f"op must be one of {expected} (got {shown(op)})")
        if own is None:
            document = {"op": op, **fields}
            return OPERATIONS.get(op).config_type.from_json(document)  # type: ignore[return-value]
        return super().from_json(fields)

    @classmethod
    def parse(cls, name: str) -> tuple[Self, Arch]:
        """
        Return the config and target of a kernel's name; the inverse of the method `name`.

        Raises:
            ConfigError: `name` is not a kernel's name, or not one of this class; the message shows
                an example.
        """
        config, arch = (kernel_names.read(name) if isinstance(name, str) else None) or (None, None)
        if arch is None or not isinstance(config, cls):
            wrong = kernel_names.what_is_wrong(name)
            raise ConfigError(f"{shown(name)} is no kernel name{wrong}; one looks like {EXAMPLE}")
        return config, arch


class TiledConfig(Config):
    """
    A config with a tiling, the part that says how threads share the work; each operation has its
    own class.
    """

    __slots__ = ()

    @property
    def tiling(self) -> Any:
        """The part of the config that says how a GPU's threads share the work."""
        raise NotImplementedError
