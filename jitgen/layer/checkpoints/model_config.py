# SPDX-License-Identifier: Apache-2.0
"""
Reads the entries of a model's ``config.json`` about experts, and finds those that no layer
supports.

Only the section with the number of experts is read: the document itself, or an object in it such as
``text_config``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jitgen.errors import InputError
from jitgen.support.documents import BadDocument, parse_json, read_bounded
from jitgen.support.frozen import frozen
from jitgen.support.text import printable, shown

_FILE = "config.json"
_MAX_BYTES = 2**24
_LARGEST = 2**31 - 1
"""Largest allowed number of any kind; sizes of kernels are int32."""

_DEEPEST = 4

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts"),
    *("moe_topk", "moe_top_k", "moe_k"),
)
_OF_LATENT = ("moe_latent_size", "moe_hidden_size")
_HIDDEN = ("hidden_size", "d_model", *_OF_LATENT)
_OF_EXPERTS = ("moe_intermediate_size", "expert_ffn_hidden_size")
_INTERMEDIATE = ("intermediate_size", "ffn_hidden_size")
_ZERO_EXPERTS = "zero_expert_num"
_ZERO_KIND = "zero_expert_type"
OF_ZERO_EXPERTS = (_ZERO_EXPERTS, _ZERO_KIND)
"""Entries of configs with the number of experts without weights, and with their kind (LongCat)."""

_QUANTISED = ("quantization_config", "compression_config")

ModelConfig = str | Path | Mapping[str, Any]
"""A model's config: a mapping, or the path of its file or folder."""


@frozen
class Said:
    """
    The statements of a config about a layer.

    Attributes:
        what: Its name in errors.
        section: The section about the experts.
        quantised: The section about quantised weights; None if there is none.
    """

    what: str
    section: Mapping[str, Any]
    quantised: Mapping[str, Any] | None = None

    def error(self, message: str) -> InputError:
        """Return an error that names the config."""
        return InputError("config", f"{self.what} {message}")

    def top_k(self, given: int | None) -> int | None:
        """
        Return the number of experts of a token: that of the config, or `given` if the config states
        none.

        Raises:
            InputError: The config does not allow `given`, or allows several numbers.
        """
        found = self._counts(_TOP_K)
        allowed = set.intersection(*found.values()) if found else set()
        if found and given is None and len(allowed) == 1:
            return next(iter(allowed))
        if found and given not in allowed:
            raise InputError(
                "top_k",
                f"must be as {self.what} says, {_words(found)} (got {given!r}); give config= where "
                "that is about another layer",
            )
        return given

    def required_top_k(self) -> int:
        """
        Return the number of experts of a token.

        Raises:
            InputError: The config does not state one.
        """
        return self._one(_TOP_K, "experts of a token")

    def experts(self) -> int:
        """
        Return the number of experts.

        Raises:
            InputError: The config does not state one.
        """
        return self._one(_EXPERTS, "experts")

    def zero_experts(self, ranks: int) -> int:
        """
        Return the number of experts that return the token itself.

        Args:
            ranks: How many ranks share the columns of every expert.

        Raises:
            InputError: They return something else, or there are several ranks, each of which would
                add them.
        """
        found = self.count(_ZERO_EXPERTS) or 0
        kind = self.section.get(_ZERO_KIND)
        if found and kind not in (None, "identity"):
            raise self.error(
                f"says {_ZERO_KIND} = {shown(kind)}, and experts without weights give the token "
                "itself: identity"
            )
        if found and ranks > 1:
            raise InputError(
                "ranks",
                f"must be 1 where {self.what} says {_ZERO_EXPERTS} = {found}, as each rank would "
                f"add the tokens (got {ranks}): share the experts, by first_expert and "
                "local_experts",
            )
        return found

    def sizes(self) -> tuple[int, int]:
        """
        Return H, the columns of the tokens that experts get, and I, the columns between the
        products.

        Raises:
            InputError: The config does not state one of them.
        """
        latent = self._counts(_OF_LATENT)
        of_experts = self._counts(_OF_EXPERTS)
        return (
            self._one(_OF_LATENT if latent else _HIDDEN, "columns of a token, H"),
            self._one(
                _OF_EXPERTS if of_experts else _INTERMEDIATE,
                "columns between the two products, I",
            ),
        )

    def count(self, name: str) -> int | None:
        """
        Return the number that a config has under `name`; the least one if it is a list; None if
        there is none.

        Raises:
            InputError: The value is not a number.
        """
        found = self._counts((name,)).get(name)
        return None if found is None else min(found)

    def require_layer(self, layer: int) -> None:
        """Refuse a layer without experts, according to the config."""
        step = self.count("decoder_sparse_step") or 1
        every = self.section.get("moe_layer_freq")
        kinds = self.section.get("mlp_layer_types")
        is_dense = {
            "first_k_dense_replace": layer < (self.count("first_k_dense_replace") or 0),
            "decoder_sparse_step": (layer + 1) % step != 0,
            "mlp_only_layers": _has(self.section.get("mlp_only_layers"), layer),
            "mlp_layer_types": _at(kinds, layer) == "dense",
            "moe_layer_freq": _at(every, layer) == 0
            or (type(every) is int and every > 0 and layer % every != 0),
        }
        for name in (name for name, holds in is_dense.items() if holds):
            said = shown(self.section[name])
            raise InputError("layer", f"{layer} has no experts: {self.what} says {name} = {said}")

    def _one(self, names: tuple[str, ...], what: str) -> int:
        """
        Return the number above zero under these names; all names that the config has must agree.
        """
        found = self._counts(names)
        numbers = set().union(*found.values()) - {0}
        if len(numbers) != 1:
            have = _words(found) if found else f"none of {', '.join(names)}"
            raise self.error(f"must say one number of {what} (got {have})")
        return numbers.pop()

    def require_experts(self, experts: int) -> None:
        """
        Check that the config does not state another number of experts than `experts`, that of the
        tensors.
        """
        self._require_one_of(_EXPERTS, experts, "experts")

    def require_sizes(self, hidden: int, intermediate: int) -> None:
        """Check that the sizes are those of the tensors."""
        self._require_one_of(_HIDDEN, hidden, "columns of a token, H")
        names = _OF_EXPERTS if self._counts(_OF_EXPERTS) else _INTERMEDIATE
        self._require_one_of(names, intermediate, "columns between the two products, I")

    def _require_one_of(self, names: tuple[str, ...], number: int, what: str) -> None:
        found = self._counts(names)
        if found and number not in set().union(*found.values()):
            raise self.error(
                f"says {_words(found)}, and the tensors have {number} {what}: one of both is of "
                "another model"
            )

    def _counts(self, names: tuple[str, ...]) -> dict[str, set[int]]:
        """Return the numbers under these names; a list has one for each layer."""
        found = {}
        for name in names:
            value = self.section.get(name)
            if value is None:
                continue
            numbers = value if isinstance(value, list | tuple) else [value]
            if not numbers or not all(
                type(each) is int and 0 <= each <= _LARGEST for each in numbers
            ):
                raise self.error(
                    f"must have an integer for {name}, 0 to {_LARGEST} (got {shown(value)})"
                )
            found[name] = set(numbers)
        return found


def require_number(layer: object) -> None:
    """Require a valid layer number, an integer of at least 0."""
    if type(layer) is not int or layer < 0:
        raise InputError("layer", f"must be an integer of at least 0 (got {shown(layer)})")


def said(config: ModelConfig | None, folder: Path | None, prefix: str) -> Said | None:
    """
    Return the statements of a config about the layer below `prefix`; None if `config` is None and
    there is no ``config.json``.

    Args:
        config: The argument of the caller; None: the ``config.json`` in `folder`, if there is one.
        folder: Folder of the tensors.
        prefix: Prefix of their names.

    Raises:
        InputError: It is not a valid config; or its file states no number of experts, which a
            mapping may leave out; or it states several kinds of experts, and `prefix` does not tell
            which one is meant.
        OSError: The file cannot be opened or read.
    """
    if isinstance(config, Mapping):
        return _of(config, "the given config", prefix, is_file=False)
    if config is None:
        # A link to nothing is read, and fails: what it said may change the layer.
        if folder is None or not os.path.lexists(folder / _FILE):
            return None
        path = folder / _FILE
    elif isinstance(config, str | Path):
        path = Path(config)
        path = path / _FILE if path.is_dir() else path
    else:
        raise InputError(
            "config",
            "must be a model's config.json, as a path or a mapping such as config.to_dict() (got "
            f"{type(config).__name__})",
        )
    what = printable(str(path))
    try:
        document = parse_json(read_bounded(path, _MAX_BYTES), max_bytes=_MAX_BYTES)
    except BadDocument as error:
        raise InputError("config", f"{what} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise InputError("config", f"{what} must be an object (got {shown(document)})")
    return _of(document, what, prefix, is_file=True)


def _of(document: Mapping[str, Any], what: str, prefix: str, *, is_file: bool) -> Said | None:
    found = {path: each for path, each in _sections(document, ()) if _has_experts(each)}
    if not found and is_file:
        raise InputError(
            "config",
            f"{what} has none of {', '.join(_EXPERTS)}, so it says nothing of experts: give the "
            "config of a model that has some (from_checkpoint goes by tensors alone with "
            "config={})",
        )
    if len(found) > 1:
        words = set(prefix.split("."))
        found = {
            path: each
            for path, each in found.items()
            if any(name.removesuffix("_config") in words for name in path)
        } or found
    if len(found) > 1:
        raise InputError(
            "config",
            f"{what} speaks of several kinds of experts, in {_paths(found)}: give config= the one "
            f"that is about {prefix!r}",
        )
    path, section = next(iter(found.items()), ((), document))
    return Said(what=what, section=section, quantised=_quantised(document, path, what))


def _sections(
    document: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """
    Yield a document and the objects inside it, each with the path of names to it: to a depth of
    four names, without those about quantisation, and without objects in lists.
    """
    yield path, document
    if len(path) == _DEEPEST:
        return
    for name, value in document.items():
        if isinstance(name, str) and isinstance(value, Mapping) and name not in _QUANTISED:
            yield from _sections(value, (*path, name))


def _has_experts(section: Mapping[str, Any]) -> bool:
    return any(section.get(name) for name in _EXPERTS)


def _quantised(
    document: Mapping[str, Any], path: tuple[str, ...], what: str
) -> Mapping[str, Any] | None:
    """
    Return the quantisation section of the document or of the objects on the path to a section,
    which must not have different ones; None if there is none.
    """
    found: list[Any] = []
    for length in range(len(path) + 1):
        section = document
        for name in path[:length]:
            section = section[name]
        found += [section[name] for name in _QUANTISED if section.get(name) is not None]
    if not found:
        return None
    if not isinstance(found[0], Mapping) or any(each != found[0] for each in found):
        raise InputError(
            "config",
            f"{what} must have one object for quantization_config (got "
            f"{' and '.join(map(shown, found))})",
        )
    return found[0]


def _at(values: object, index: int) -> object:
    """Return a value of a list; None if it is not a list, or too short."""
    is_there = isinstance(values, list | tuple) and index < len(values)
    return values[index] if is_there else None  # type: ignore[index]


def _has(values: object, value: int) -> bool:
    return isinstance(values, list | tuple) and value in values


def _words(found: Mapping[str, set[int]]) -> str:
    return " and ".join(
        f"{name} = {' or '.join(map(str, sorted(numbers)))}" for name, numbers in found.items()
    )


def _paths(found: Mapping[tuple[str, ...], Any]) -> str:
    return " and ".join(".".join(path) or "itself" for path in found)
