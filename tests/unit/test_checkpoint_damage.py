# SPDX-License-Identifier: Apache-2.0
"""
Checkpoints with anything changed in them: the layer is right, or there is one clear error.

What is right is found by a reader of the tests' own, which knows the names and no more: whatever
it cannot read must not load, and what loads must stand for the numbers that it reads.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from tests.checkpoint_cases import HIDDEN, MAKERS, TOP_K
from tests.checkpoint_reader import Numbers, of_layer, plainly

ROUNDS = 100


def is_right(source: Any, prefix: str, read: Callable[[], Numbers], names: set[str]) -> bool:
    """Say whether a layer was loaded; it must be right, and an error must name what is wrong."""
    try:
        layer = jitgen.MoELayer.from_checkpoint(source, prefix, top_k=TOP_K)
    except (InputError, OSError) as error:
        text = str(error)
        assert "\n" not in text
        assert any(name in text for name in names), text
        return False
    for ours, theirs in zip(of_layer(layer), read(), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)
    return True


TYPES = [
    *(torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool),
    *(torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.complex64),
]
VALUES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: 3,
    lambda: "x",
    lambda: [1.0],
    dict,
    torch.Size,
    lambda: torch.ones(()),
    lambda: torch.ones(0),
    lambda: torch.ones(1, 1, 1),
    lambda: torch.ones(2, 2).to_sparse(),
    lambda: torch.empty(128, 256, device="meta"),
    lambda: torch.empty(1).expand(2**40, 2**20),
]
ADDED = ("bias", "lora_A.weight", "input_scale", "weight_scale", "weight_packed", "g_idx")


def _swap_type(some: random.Random, tensors: dict[str, Any]) -> None:
    name, dtype = some.choice([*tensors]), some.choice(TYPES)
    tensors[name] = tensors[name].float().to(dtype)


def _swap_bits(some: random.Random, tensors: dict[str, Any]) -> None:
    name, dtype = some.choice([*tensors]), some.choice(TYPES)
    if tensors[name].element_size() == dtype.itemsize:
        tensors[name] = tensors[name].view(dtype)


def _swap_shape(some: random.Random, tensors: dict[str, Any]) -> None:
    name = some.choice([*tensors])
    each = tensors[name]
    kind = some.randrange(7)
    if kind == 0:
        each = each.transpose(-1, -2)
    elif kind == 1:
        each = each.unsqueeze(some.randrange(each.dim() + 1))
    elif kind == 2:
        each = each.flatten()
    elif kind == 3:
        side = some.randrange(each.dim())
        each = each.narrow(side, 0, some.randrange(each.shape[side]))
    elif kind == 4:
        each = torch.cat([each, each], some.randrange(each.dim()))
    elif kind == 5:
        each = each.reshape(*each.shape[:-2], each.shape[-1], each.shape[-2])
    else:
        each = each[0]
    tensors[name] = each


def _swap_names(some: random.Random, tensors: dict[str, Any]) -> None:
    one, other = some.sample([*tensors], 2)
    tensors[one], tensors[other] = tensors[other], tensors[one]


def _rename(some: random.Random, tensors: dict[str, Any]) -> None:
    name = some.choice([*tensors])
    place = some.randrange(len(name))
    letter = some.choice([".", "0", "1", "9", "x", "_", "é", ""])
    tensors[name[:place] + letter + name[place + 1 :]] = tensors.pop(name)


def _drop(some: random.Random, tensors: dict[str, Any]) -> None:
    del tensors[some.choice([*tensors])]


def _add(some: random.Random, tensors: dict[str, Any]) -> None:
    name = some.choice([*tensors]).rpartition(".")[0]
    tensors[f"{name}.{some.choice(ADDED)}"] = torch.ones(3)


def _swap_value(some: random.Random, tensors: dict[str, Any]) -> None:
    tensors[some.choice([*tensors])] = some.choice(VALUES)()


def _spoil_scale(some: random.Random, tensors: dict[str, Any]) -> None:
    names = [name for name in tensors if "scale" in name or name.endswith("bias")]
    if not names:
        return
    name = some.choice(names)
    spoilt = tensors[name].clone()
    is_bytes = spoilt.dtype is torch.uint8
    spoilt.view(-1)[0] = 255 if is_bytes else some.choice([torch.nan, torch.inf, -torch.inf])
    tensors[name] = spoilt


def _memory(some: random.Random, tensors: dict[str, Any]) -> None:
    """Change how a tensor lies in memory, and not what it says."""
    name = some.choice([*tensors])
    each = tensors[name]
    lies = torch.empty((*each.shape[:-1], 2 * each.shape[-1]), dtype=each.dtype)
    lies[..., ::2] = each
    tensors[name] = lies[..., ::2]


CHANGES = (
    *(_swap_type, _swap_bits, _swap_shape, _swap_names, _rename, _drop, _add, _swap_value),
    *(_spoil_scale, _memory),
)


@pytest.mark.parametrize("family", MAKERS)
def test_any_change_of_a_mapping(family: str) -> None:
    """
    Values of other kinds raised IndexError, AttributeError, TypeError, NotImplementedError and
    RuntimeError; scales of other types, and unknown names, gave other layers.
    """
    some = random.Random(f"mapping {family}")
    prefix, tensors, _ = MAKERS[family]()
    loaded = 0
    for number in range(ROUNDS):
        changed: dict[str, Any] = dict(tensors)
        change = CHANGES[number % len(CHANGES)]
        change(some, changed)
        names = {name for name in {*tensors, *changed} if name.startswith(prefix)}
        try:
            read = partial(plainly, changed, prefix)
            loaded += is_right(changed, prefix, read, names | {prefix})
        except Exception as error:
            raise AssertionError(f"{change.__name__}, round {number}: {error!r}") from error

    assert loaded >= ROUNDS // len(CHANGES)  # those of memory alone, and some others


def _saved(tensors: dict[str, Tensor], path: Path) -> bytes:
    save_file(tensors, path)
    return path.read_bytes()


def _header(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _joined(header: object, rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + rest


def _torn(some: random.Random, data: bytes) -> bytes:
    return data[: some.choice([0, 1, 7, 8, 9, len(data) - 1, some.randrange(len(data))])]


def _flipped(some: random.Random, data: bytes) -> bytes:
    """Flip bits of the header, or of its length."""
    end = 8 + struct.unpack("<Q", data[:8])[0]
    found = bytearray(data)
    for _ in range(some.choice([1, 2, 8])):
        found[some.randrange(end)] ^= 1 << some.randrange(8)
    return bytes(found)


def _other_fact(some: random.Random, data: bytes) -> bytes:
    header, rest = _header(data)
    name = some.choice([*header])
    fact = header[name]
    word = some.choice(["dtype", "shape", "data_offsets"])
    fact[word] = some.choice(
        {
            "dtype": ["F32", "BF16", "F16", "U8", "I8", "F8_E4M3", "F8_E8M0", "F4", "C64", "BOOL"],
            "shape": [
                *([], [0], [1], [-1], fact["shape"][::-1], [*fact["shape"], 1], [2**62, 2**62]),
                *([0, 10**19], [1, 0], "x", None, [1.5], fact["shape"][1:]),
            ],
            "data_offsets": [[0, 0], [0, 1], [5, 3], [0, 2**60], [], None, fact["data_offsets"]],
        }[word]
    )
    return _joined(header, rest)


def _other_names(some: random.Random, data: bytes) -> bytes:
    header, rest = _header(data)
    name = some.choice([*header])
    header[name + some.choice(["", ".x", "_bias", "\n", "\x1b[2J"])] = header.pop(name)
    return _joined(header, rest)


@pytest.mark.parametrize("family", MAKERS)
def test_any_damage_of_a_file(family: str, tmp_path: Path) -> None:
    """Sizes in a header that no tensor has raised RuntimeError and TypeError, without a name."""
    some = random.Random(f"file {family}")
    prefix, tensors, _ = MAKERS[family]()
    path = tmp_path / "model.safetensors"
    data = _saved(tensors, path)
    damages = (_torn, _flipped, _other_fact, _other_fact, _other_names)
    for number in range(ROUNDS):
        damage = damages[number % len(damages)]
        path.write_bytes(damage(some, data))
        try:
            is_right(path, prefix, lambda: plainly(load_file(path), prefix), {str(path), *tensors})
        except Exception as error:
            raise AssertionError(f"{damage.__name__}, round {number}: {error!r}") from error


def test_any_damage_of_an_index(tmp_path: Path) -> None:
    some = random.Random("index")
    prefix, tensors, _ = MAKERS["deepseek_v3"]()
    names = [*tensors]
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({each: tensors[each] for each in part}, tmp_path / file)
    places = {each: file for file, part in halves.items() for each in part}
    path = tmp_path / "model.safetensors.index.json"
    others = ["absent.safetensors", "b.safetensors", ".", "", "\x00", "\ud800", 3, None, ["a"]]
    loaded = 0
    for number in range(ROUNDS):
        changed: dict[str, Any] = dict(places)
        for _ in range(some.choice([0, 1, 3])):
            changed[some.choice(names)] = some.choice(others)
        if some.random() < 0.2:
            del changed[some.choice(names)]
        text = json.dumps({"weight_map": changed}).encode()
        path.write_bytes(_torn(some, text) if some.random() < 0.2 else text)
        try:
            loaded += is_right(
                tmp_path, prefix, lambda: plainly(tensors, prefix), {str(tmp_path), *names}
            )
        except Exception as error:
            raise AssertionError(f"round {number}: {error!r}") from error

    assert loaded


@pytest.mark.parametrize("family", MAKERS)
def test_any_config(family: str) -> None:
    """Values of any type under every word that is looked at, at any depth."""
    some = random.Random(f"config {family}")
    prefix, tensors, _ = MAKERS[family]()
    words = (
        *("num_experts", "num_local_experts", "num_experts_per_tok", "hidden_size", "hidden_act"),
        *("moe_intermediate_size", "swiglu_limit", "swiglu_alpha", "swiglu_limits", "text_config"),
        *("quantization_config", "quant_method", "modules_to_not_convert", "weight_block_size"),
        *("scale_fmt", "mlp_gate_softcap", "activation", 3),
    )
    values: list[Any] = [
        *(None, 0, 1, -1, 5, HIDDEN, 2.0, "", "silu", "gelu", "fp8", "mxfp4", [], {}, [128, 128]),
        *(True, [None], ["x"], {"name": "silu"}, float("nan"), 10**30, {"a": {"b": {}}}),
    ]

    def document(depth: int) -> dict[Any, Any]:
        return {
            some.choice(words): document(depth - 1)
            if depth and some.random() < 0.3
            else some.choice(values)
            for _ in range(some.randrange(1, 5))
        }

    expected = plainly(tensors, prefix)
    arguments = set()
    for _ in range(2 * ROUNDS):
        config = document(3)
        try:
            layer = jitgen.MoELayer.from_checkpoint(tensors, prefix, config=config, top_k=TOP_K)
        except InputError as error:
            arguments.add(error.argument)
            continue
        allowed = {"swiglu_oai", "swiglu"} if family == "gpt_oss" else {"swiglu"}
        for word, kinds in (
            ("swiglu_alpha", {"swiglu_oai"}),
            ("swiglu_limit'", {"swiglu_clamp"}),
            ("gelu", {"geglu"}),
        ):
            allowed |= kinds if word in str(config) else set()
        assert layer.config.activation in allowed
        assert len(of_layer(layer)) == len(expected)
    assert {"config", "top_k"} <= arguments <= {"config", "top_k", "swiglu_limit", "swiglu_alpha"}
