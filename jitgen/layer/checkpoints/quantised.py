# SPDX-License-Identifier: Apache-2.0
"""
Compares the statements of a model's config on quantised weights with the tensors.

Each ``quant_method`` has a function that reads its entries and returns the encodings that they
allow; the tensors decide among these. Modules that the config lists as not converted have plain
weights.

==================  ===============================================================================
quant_method        what is read of it
==================  ===============================================================================
fp8                 ``weight_block_size``, ``fmt``, ``scale_fmt``, ``activation_scheme``
mxfp4               that it is MXFP4
compressed-tensors  ``format``, ``config_groups``: type, bits, strategy, group or block of weights
modelopt            ``quant_algo``, ``group_size``
gptq, awq           ``bits``, ``group_size``; ``sym``, ``desc_act``; ``zero_point``, ``version``
==================  ===============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from jitgen.config.config import SCALE_BLOCK
from jitgen.layer.checkpoints import expressions
from jitgen.layer.checkpoints.encodings.int4_turned import GPTQ_V2
from jitgen.layer.checkpoints.family import EXPERT, below
from jitgen.layer.checkpoints.model_config import Said
from jitgen.layer.checkpoints.part import Form
from jitgen.layer.checkpoints.scales import FLOAT, UE8M0
from jitgen.support.frozen import frozen
from jitgen.support.text import shown

_WORD = "quantization_config"
_PLAIN = "bf16"
_FP8 = ("fp8_block128", "fp8_row", "fp8_tensor")
_NOT_CONVERTED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
_FORMATS = {
    **dict.fromkeys(("ue8m0", "e8m0", "float8_e8m0fnu"), UE8M0),
    **dict.fromkeys(("float", "float32", "fp32"), FLOAT),
}
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "fmt": ("e4m3", "e4m3fn", "float8_e4m3fn"),
    "weight_block_size": ([SCALE_BLOCK, SCALE_BLOCK], [1, 32], [32, 32]),
    "activation_scheme": ("dynamic",),
    "expert_dtype": ("fp8", "fp4"),
    "scale_fmt": tuple(_FORMATS),
}
"""Allowed statements on FP8; all may be absent."""

_OF_BLOCKS = {
    (SCALE_BLOCK, SCALE_BLOCK): "fp8_block128",
    (1, 32): "mxfp8",
    (32, 32): "fp8_block32",
}
"""Encodings by the rows and columns that share a scale."""

_NARROW = ("expert_dtype", "weight_block_size", "quant_algo")
"""Entries that decide among encodings."""

_ELSEWHERE = {
    *("quant_method", "modules_to_convert", "dequantize", "kv_cache_scheme", "producer"),
    *("kv_cache_quant_algo", "quantization_status", "global_compression_ratio", "version"),
}
"""Fields that do not affect how values and scales are read."""

_COMPRESSED = {
    ("float", 8, "channel"): "fp8_row",
    ("float", 8, "tensor"): "fp8_tensor",
    ("float", 8, "block"): "fp8_block128",
    ("float", 8, "group"): "mxfp8",
    ("float", 4, "group"): "mxfp4",
    ("float", 4, "tensor_group"): "nvfp4",
    ("int", 4, "group"): "int4",
    ("int", 4, "channel"): "int4",
}
"""Encodings by the description of compressed-tensors: type, bits and strategy of the weights."""

_SOME_MODULES = {"model.layers.0.mlp.experts.0.gate_proj"}
"""Names of the modules of experts, used if there are no tensors with names."""

_GROUPS = {"mxfp8": (32,), "mxfp4": (32,), "nvfp4": (16,)}
"""Number of values that share a scale, for encodings with a single group size."""

_ALGORITHMS = {
    "FP8": ("fp8_tensor",),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8_row",),
    "FP8_PB_WO": ("fp8_block128",),
    "MXFP8": ("mxfp8",),
    "NVFP4": ("nvfp4",),
    "W4A16_NVFP4": ("nvfp4",),
    "MXFP4": ("mxfp4",),
    "W4A8_MXFP4_FP8": ("mxfp4",),
}
"""Encodings by their name in ModelOpt."""

_GPTQ: dict[str, tuple[Any, ...]] = {
    "bits": (4,),
    "sym": (True,),
    "checkpoint_format": ("gptq", GPTQ_V2),
    "pack_dtype": ("int32",),
}
"""Allowed statements of GPTQ: weights whose columns were reordered (``desc_act``) are not read."""

_OF_GPTQ = {
    *("group_size", "damp_percent", "static_groups", "true_sequential", "meta", "dataset"),
    *("model_name_or_path", "model_file_base_name", "quantizer", "use_exllama", "tokenizer"),
}
_AWQ: dict[str, tuple[Any, ...]] = {"bits": (4,)}
_OF_AWQ = {"group_size", "backend"}
"""Entries that follow from the tensors, or do not affect how they are read."""


@frozen
class Asked:
    """
    The requests of the caller.

    Attributes:
        is_static_left_out: Whether the config may state static scales of tokens, which are not
            used.
        is_dequantized: Whether weights become bfloat16.
    """

    is_static_left_out: bool = False
    is_dequantized: bool = False


def scale_format(said: Said | None, prefix: str, form: Form, asked: Asked) -> str | None:
    """
    Return the format of scales, or of GPTQ's zero points, that the config states; None if it states
    none.

    Args:
        said: The config.
        prefix: Prefix of the layer's names.
        form: The form of the tensors.
        asked: The requests of the caller.

    Raises:
        InputError: The config is not understood, or contradicts the tensors.
    """
    if said is None or said.quantised is None:
        return None
    found = said.quantised
    if asked.is_static_left_out and found.get("activation_scheme") == "static":
        found = {**found, "activation_scheme": None}
    method = _method(said, found)
    is_skipped = _is_skipped(said, prefix, form)
    encoding = form.encoding.name
    if encoding == _PLAIN and (is_skipped or found.get("dequantize") is True):
        return None
    first = below(prefix, form.reads[0])
    if is_skipped:
        raise said.error(
            f"says in {_WORD} that {below(prefix, 'experts')} was not converted, and {first} is "
            f"{encoding}"
        )
    have = "not quantised" if encoding == _PLAIN else encoding
    if encoding == _PLAIN and method in ("fp8", "mxfp4"):  # whatever else it says
        allowed: tuple[str, ...] = ()
    else:
        modules = _modules(prefix, form)
        allowed = _READERS[method](said, found, modules, asked)
    if encoding not in allowed:
        says = f"{_WORD}.quant_method = {method}{_text(found, allowed)}"
        raise said.error(
            f"says {says}, and {first} is of weights that are {have}; where it is not about these "
            "experts, give config= without it"
        )
    if _lowered(found.get("checkpoint_format")) == GPTQ_V2:
        return GPTQ_V2
    return _FORMATS.get(_lowered(found.get("scale_fmt")))


def stated(said: Said) -> tuple[str, ...]:
    """
    Return the encodings that a config allows for experts that it does not exclude.

    Raises:
        InputError: The config is not understood.
    """
    if said.quantised is None:
        return (_PLAIN,)
    method = _method(said, said.quantised)
    asked = Asked(is_static_left_out=True, is_dequantized=True)
    return _READERS[method](said, said.quantised, _SOME_MODULES, asked)


def _text(found: Mapping[str, Any], allowed: tuple[str, ...]) -> str:
    words = [f"{name} = {shown(found[name])}" for name in _NARROW if found.get(name)]
    return "".join(f", {each}" for each in (*words, " or ".join(allowed)) if each)


def _method(said: Said, found: Mapping[str, Any]) -> str:
    method = found.get("quant_method")
    if not isinstance(method, str) or method.lower() not in _READERS:
        raise said.error(
            f"says {_WORD}.quant_method = {shown(method)}, and {', '.join(_READERS)} are read; "
            "where it is not about these experts, give config= without it"
        )
    return method.lower()


def _fp8(said: Said, found: Mapping[str, Any], *_: object) -> tuple[str, ...]:
    _require_known(said, found, _ALLOWED)
    if _lowered(found.get("expert_dtype")) == "fp4":  # whatever blocks other layers have
        return ("mxfp4",)
    block = found.get("weight_block_size")
    if not block:
        return _FP8
    return (_OF_BLOCKS[tuple(block)],)


def _mxfp4(said: Said, found: Mapping[str, Any], *_: object) -> tuple[str, ...]:
    _require_known(said, found, {})
    return ("mxfp4",)


def _modelopt(said: Said, found: Mapping[str, Any], *_: object) -> tuple[str, ...]:
    """
    Return the encoding that the entries of ModelOpt name. The tensors decide whether there are
    static scales.
    """
    _require_known(
        said,
        {name: value for name, value in found.items() if name != "config_groups"},
        {"quant_algo": tuple(each.lower() for each in _ALGORITHMS), "group_size": (16, 32)},
    )
    algorithm = found.get("quant_algo")
    if not isinstance(algorithm, str) or not algorithm:
        raise said.error(
            f"says {_WORD}.quant_algo = {shown(algorithm)}, and {', '.join(_ALGORITHMS)} are read"
        )
    return _ALGORITHMS[algorithm.upper()]


def _compressed(
    said: Said, found: Mapping[str, Any], modules: set[str], asked: Asked
) -> tuple[str, ...]:
    others = {"config_groups", "format", "sparsity_config", "transform_config"}
    _require_known(said, {n: value for n, value in found.items() if n not in others}, {})
    for name in ("sparsity_config", "transform_config"):
        if found.get(name):
            raise said.error(f"says {_WORD}.{name}, and such weights are not read")
    chosen = _groups_of(said, found, modules)
    return tuple(
        dict.fromkeys(_compressed_group(said, name, group, asked) for name, group in chosen)
    )


def _groups_of(
    said: Said, found: Mapping[str, Any], modules: set[str]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the groups of a config that apply to these modules, by name."""
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise said.error(f"must have an object for {_WORD}.config_groups (got {shown(groups)})")
    own = [each for each in groups.items() if _is_target(said, each[1], modules)]
    general = [each for each in groups.items() if _is_target(said, each[1], {"Linear"})]
    chosen = own or general
    if not chosen:
        raise said.error(f"says in {_WORD}.config_groups nothing of {min(modules)}")
    return chosen


def group_size(said: Said) -> int | None:
    """Return how many INT4 weights of experts share a scale; None if the config does not say."""
    if _method(said, said.quantised or {}) in ("gptq", "awq"):
        found = (said.quantised or {}).get("group_size")
        return found if isinstance(found, int) else None
    _, group = _groups_of(said, said.quantised or {}, _SOME_MODULES)[0]
    found = group["weights"].get("group_size")
    return found if isinstance(found, int) else None


def _is_target(said: Said, group: Any, modules: set[str]) -> bool:
    targets = group.get("targets") if isinstance(group, Mapping) else None
    targets = targets if isinstance(targets, list | tuple) else []
    return any(
        isinstance(target, str) and any(_is_named(said, module, target) for module in modules)
        for target in targets
    )


def _compressed_group(said: Said, name: str, group: Mapping[str, Any], asked: Asked) -> str:
    """Return the encoding of one group of modules."""
    where = f"{_WORD}.config_groups.{name}"
    weights, tokens = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping):
        raise said.error(f"must have an object for {where}.weights (got {shown(weights)})")
    kind = tuple(weights.get(word) for word in ("type", "num_bits", "strategy"))
    hashable = kind if all(isinstance(each, str | int) for each in kind) else None
    encoding = _COMPRESSED.get(hashable)  # type: ignore[arg-type]  # no key is None
    sizes = {
        "group_size": _GROUPS.get(str(encoding)),
        "block_structure": ([SCALE_BLOCK, SCALE_BLOCK], "128x128"),
        "symmetric": (True,),
        "actorder": (),
        "zp_dtype": (),
    }
    if encoding is None:
        raise said.error(
            f"says {where}.weights of type, num_bits and strategy {shown(kind)}, which is no "
            f"encoding that is read: {', '.join(' '.join(map(str, k)) for k in _COMPRESSED)}"
        )
    for word, allowed in sizes.items():
        value = weights.get(word)
        if value is not None and allowed is not None and value not in allowed:
            wanted = f", and {' or '.join(map(str, allowed))} is read" if allowed else ""
            raise said.error(f"says {where}.weights.{word} = {shown(value)}{wanted}")
    is_static = isinstance(tokens, Mapping) and tokens.get("dynamic") is False
    if is_static and not asked.is_static_left_out:
        raise said.error(
            f"says {where}.input_activations.dynamic = False, and tokens are quantised with scales "
            "that are found for them: ignore_input_scales=True leaves the static ones out"
        )
    if tokens is None and encoding in _FP8 and not asked.is_dequantized:
        raise said.error(
            f"says {where}.input_activations = None, tokens in bfloat16, and a layer with FP8 "
            "weights quantises its tokens: dequantize=True reads weights as bfloat16"
        )
    return encoding


def _gptq(said: Said, found: Mapping[str, Any], *_: object) -> tuple[str, ...]:
    """
    Return the encoding of GPTQ, after checking its entries; those about the search for the weights
    do not affect how they are read.
    """
    if found.get("sym") is False:
        raise said.error(f"says {_WORD}.sym = False, and weights with zero points are not read")
    _require_known(said, _without(found, _OF_GPTQ), _GPTQ)
    return ("int4_gptq",)


def _awq(said: Said, found: Mapping[str, Any], *_: object) -> tuple[str, ...]:
    if found.get("zero_point"):
        raise said.error(
            f"says {_WORD}.zero_point = {shown(found['zero_point'])}, and weights with zero points "
            "are not read"
        )
    _require_known(said, _without(found, _OF_AWQ), _AWQ)
    if _lowered(found.get("version")) not in (None, "gemm"):
        raise said.error(f"says {_WORD}.version = {shown(found['version'])}, and gemm is read")
    return ("int4_awq",)


def _without(found: Mapping[str, Any], names: set[str]) -> Mapping[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


_Reader = Callable[[Said, Mapping[str, Any], set[str], Asked], tuple[str, ...]]

_READERS: dict[str, _Reader] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "gptq": _gptq,
    "awq": _awq,
}
"""The function that reads the entries of each method."""


def _require_known(
    said: Said, found: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]
) -> None:
    """Refuse unknown entries, and entries that contradict the encoding."""
    for name, value in found.items():
        if name in (*_NOT_CONVERTED, *_ELSEWHERE) or value in (None, False, [], {}, ""):
            continue
        if name not in allowed:
            raise said.error(
                f"says {_WORD}.{name} = {shown(value)}, which is not understood of "
                f"{found.get('quant_method')}"
            )
        if (list(value) if isinstance(value, tuple) else _lowered(value)) not in allowed[name]:
            wanted = " or ".join(map(str, allowed[name]))
            raise said.error(f"says {_WORD}.{name} = {shown(value)}, and {wanted} is read")


def _lowered(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _is_skipped(said: Said, prefix: str, form: Form) -> bool:
    """Return whether the config lists the experts among the modules that were not converted."""
    entries: list[str] = []
    for name in _NOT_CONVERTED:
        value = (said.quantised or {}).get(name)
        if value is None:
            continue
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise said.error(f"must have a list of names for {_WORD}.{name} (got {shown(value)})")
        entries += value
    modules = _modules(prefix, form)
    return any(_is_named(said, module, entry) for module in modules for entry in entries)


def _modules(prefix: str, form: Form) -> set[str]:
    """Return the names of the modules of the first expert, or of those that hold all experts."""
    start = "experts." if form.family.is_fused else f"experts{EXPERT.replace('E', '0')}"
    return {below(prefix, start + module) for module in form.family.modules}


def _is_named(said: Said, module: str, entry: str) -> bool:
    """
    Return whether an entry names a module, a parent of it, or the last words of either; one that
    begins with ``re:`` is a regular expression.
    """
    words = module.split(".")
    paths = [".".join(words[:end]) for end in range(1, len(words) + 1)]
    if entry.startswith("re:"):
        try:
            return expressions.is_match(entry[3:], paths)
        except ValueError as error:
            raise said.error(f"has in {_WORD} {shown(entry)}, {error}") from error
    return any(fnmatchcase(path, entry) or path.endswith(f".{entry}") for path in paths)
