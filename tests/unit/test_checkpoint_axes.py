# SPDX-License-Identifier: Apache-2.0
"""Every family of names with every encoding of values: whole, cut for ranks, damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import jitgen
from jitgen.errors import InputError
from jitgen.layer.checkpoints.encodings import ENCODINGS, Encoding
from jitgen.layer.checkpoints.family import FAMILIES
from jitgen.layer.checkpoints.source import Source
from jitgen.layer.reference import relative_error
from tests.checkpoint_axes import PREFIX, TOP_K, Made, cases, expected, make, named, result

CASES = cases()
INTERMEDIATE = 320
CLOSE = 2e-6
"""float32 sums of the same numbers."""


_MEASURED = """
import re, sys
import jitgen, torch
from jitgen.layer import checkpoints

def memory():
    text = open("/proc/self/status").read()
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", text)[1])

torch.zeros(8).sum()
peaks, base = [], memory()
layer = jitgen.MoELayer.from_checkpoint(
    sys.argv[1], layer=3, top_k=2, progress=lambda *_: peaks.append(memory() - base)
)
print(sum(each.nbytes for each in layer.buffers()), max(*peaks, memory() - base))
"""


def size_of(case: tuple[str, Encoding]) -> int:
    """Return I: blocks of scales of a tensor with gates before ups must not have both."""
    family, encoding = case
    has_both = FAMILIES[family].rows == 2 and not FAMILIES[family].has_bias
    return 384 if has_both and encoding.name == "fp8_block128" else INTERMEDIATE


def load(made: Made | dict[str, Tensor], encoding: Encoding, **named: Any) -> jitgen.MoELayer:
    tensors = made.tensors if isinstance(made, Made) else made
    dequantize = named.pop("dequantize", encoding.kernel is None)
    if not any(word in name for name in tensors for word in ("gate", ".w1.")):
        named.setdefault("activation", "relu2")
    return jitgen.MoELayer.from_checkpoint(
        tensors, PREFIX, top_k=TOP_K, dequantize=dequantize, **named
    )


def refused(tensors: dict[str, Tensor], encoding: Encoding, **named: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(tensors, encoding, **named)
    return str(caught.value)


def is_rounded(encoding: Encoding) -> bool:
    """Return whether a layer beside bfloat16 tokens rounds the numbers to bfloat16."""
    return encoding.kernel in (None, "int4")


def by_name(*names: str) -> list[Encoding]:
    return [each for each in ENCODINGS if each.name in names]


@pytest.mark.parametrize("case", CASES, ids=named)
class TestEveryFamilyInEveryEncoding:
    def test_it_is_read_without_a_loss(self, case: tuple[str, Encoding]) -> None:
        family, encoding = case
        made = make(family, encoding, size_of(case))
        layer = load(made, encoding)
        wanted = expected(made, rounded=is_rounded(encoding), is_oai=family == "gpt_oss")

        assert layer.weights.activation_format == {"block128": "block128", "row": "row"}.get(
            str(encoding.kernel), "none"
        )
        assert relative_error(result(layer).double(), wanted) < CLOSE

    @pytest.mark.sampled(7)
    def test_it_becomes_bfloat16_if_asked_to(self, case: tuple[str, Encoding]) -> None:
        family, encoding = case
        made = make(family, encoding, INTERMEDIATE)
        layer = load(made, encoding, dequantize=True)
        wanted = expected(made, rounded=True, is_oai=family == "gpt_oss")

        assert layer.weights.w13.dtype is torch.bfloat16  # type: ignore[union-attr]
        assert relative_error(result(layer).double(), wanted) < CLOSE

    @pytest.mark.sampled(9)
    @pytest.mark.parametrize("ranks", [2, 4, 8])
    def test_ranks_share_the_columns(self, case: tuple[str, Encoding], ranks: int) -> None:
        """160, 80 and 40 columns begin within blocks of scales, and end within them."""
        family, encoding = case
        made = make(family, encoding, size_of(case))
        layers = [load(made, encoding, rank=rank, ranks=ranks) for rank in range(ranks)]
        total = sum(result(each).double() for each in layers)
        wanted = expected(made, rounded=is_rounded(encoding), is_oai=family == "gpt_oss")

        assert relative_error(total, wanted) < CLOSE  # type: ignore[arg-type]
        assert all(each.config.intermediate % 16 == 0 for each in layers)

    @pytest.mark.sampled(7)
    def test_a_share_of_the_experts(self, case: tuple[str, Encoding]) -> None:
        family, encoding = case
        made = make(family, encoding, size_of(case))
        layers = [
            load(made, encoding, first_expert=first, local_experts=count)
            for first, count in ((0, 2), (2, 1))
        ]
        total = sum(result(each).double() for each in layers)
        wanted = expected(made, rounded=is_rounded(encoding), is_oai=family == "gpt_oss")

        assert relative_error(total, wanted) < CLOSE  # type: ignore[arg-type]

    @pytest.mark.sampled(7)
    def test_damage_is_one_error_that_names_the_tensor(self, case: tuple[str, Encoding]) -> None:
        family, encoding = case
        made = make(family, encoding, size_of(case))
        for name, tensor in made.tensors.items():
            if not FAMILIES[family].is_fused and ".experts.1." not in name:
                continue
            others = [
                tensor.double(),
                tensor.flatten()[:-1],
                torch.stack([tensor, tensor]),
                tensor[:0],
                tensor.to("meta"),
            ]
            for other in others:
                text = refused({**made.tensors, name: other}, encoding)
                assert name in text
                assert "\n" not in text
            rest = {each: made.tensors[each] for each in made.tensors if each != name}
            assert PREFIX in refused(rest, encoding)

    @pytest.mark.sampled(7)
    def test_what_it_does_not_read_is_refused(self, case: tuple[str, Encoding]) -> None:
        family, encoding = case
        made = make(family, encoding, size_of(case))
        start = f"{PREFIX}.experts.{FAMILIES[family].down}"
        start = start if FAMILIES[family].is_fused else start.replace("experts.", "experts.1.")
        for end in ("weight_zero_point", "lora_A.weight", "g_idx", "input_scale", "qweight"):
            text = refused({**made.tensors, f"{start}.{end}": torch.ones(1)}, encoding)
            assert f"{start}.{end}" in text


class TestWhatNoLayerComputes:
    def test_gates_and_ups_in_one_block_of_scales(self) -> None:
        encoding = by_name("fp8_block128")[0]
        made = make("qwen3_5_moe", encoding, INTERMEDIATE)
        text = refused(made.tensors, encoding)

        assert f"{PREFIX}.experts.gate_up_proj must have I a multiple of 128" in text
        assert "dequantize=True" in text

    def test_groups_of_128_in_int4(self) -> None:
        [encoding] = by_name("int4")
        made = make("deepseek_v3", encoding, 384, group=32)
        wide = {
            name: torch.cat([tensor[:, ::4]], 1) if "down_proj.weight_scale" in name else tensor
            for name, tensor in made.tensors.items()
        }
        for e in range(3):
            stored = wide[f"{PREFIX}.experts.{e}.down_proj.weight_scale"].double()
            before = made.tensors[f"{PREFIX}.experts.{e}.down_proj.weight_scale"].double()
            made.w2[e] *= (stored.repeat_interleave(4, 1) / before).repeat_interleave(32, 1)
        layers = [load(wide, encoding, rank=rank, ranks=8) for rank in range(8)]
        wanted = expected(made, rounded=True, is_oai=False)
        total = sum(result(each).double() for each in layers)

        assert relative_error(total, wanted) < 1e-4  # type: ignore[arg-type]  # of w2 above

    def test_gates_and_ups_of_nvfp4_with_two_global_scales(self) -> None:
        """Both are one matrix with one factor: equal ones are, others become bfloat16."""
        for encoding in by_name("nvfp4"):
            made = make("deepseek_v3", encoding, INTERMEDIATE)
            name = f"{PREFIX}.experts.1.up_proj.{encoding.roles[2]}"
            tensors = {**made.tensors, name: made.tensors[name] * 2}
            text = refused(tensors, encoding)

            assert f"{name} must be that of the other matrix of its product" in text
            assert "dequantize=True" in text
            assert load(tensors, encoding, dequantize=True).weights.activation_format == "none"

    @pytest.mark.parametrize("size", [64, 32])
    def test_int4_that_no_kernel_is_for(self, size: int) -> None:
        """Groups of 64, or scales in float32: bfloat16 if asked to."""
        [encoding] = by_name("int4")
        made = make("deepseek_v3", encoding, 320, group=32)
        change, of = (lambda t: t.float(), "proj.weight_scale")
        if size == 64:
            change, of = (lambda t: t[:, ::2].contiguous(), "down_proj.weight_scale")
        tensors = {n: change(each) if of in n else each for n, each in made.tensors.items()}
        text = refused(tensors, encoding)

        assert "dequantize=True" in text
        assert ("groups of 64" if size == 64 else "bfloat16 or float16") in text
        assert load(tensors, encoding, dequantize=True).weights.activation_format == "none"

    def test_int4_that_says_another_shape(self) -> None:
        [encoding] = by_name("int4")
        made = make("deepseek_v3", encoding, INTERMEDIATE)
        name = f"{PREFIX}.experts.1.up_proj.weight_shape"

        assert name in refused({**made.tensors, name: torch.tensor([320, 80])}, encoding)

    @pytest.mark.parametrize(
        ("encoding", "role", "change", "message"),
        [
            ("int4_gptq", "qzeros", 0x11111111, "must be 7 in every place"),
            ("int4_awq", "qzeros", 1, "zero points are not read (got 9)"),
            ("int4_gptq", "g_idx", 1, "0 to 4: weights that desc_act reordered are not read"),
        ],
    )
    def test_int4_with_zero_points_or_in_another_order(
        self, encoding: str, role: str, change: int, message: str
    ) -> None:
        first = by_name(encoding)[0]
        made = make("deepseek_v3", first, INTERMEDIATE)
        name = f"{PREFIX}.experts.1.up_proj.{role}"
        text = refused({**made.tensors, name: made.tensors[name] + change}, first)

        assert message in text
        assert name in text

    def test_zero_points_of_the_second_format_of_gptq(self) -> None:
        """They are stored as they are, 8, if the config says so."""
        first = by_name("int4_gptq")[0]
        made = make("mixtral", first, INTERMEDIATE)
        second = {
            name: tensor + 0x11111111 if name.endswith("qzeros") else tensor
            for name, tensor in made.tensors.items()
        }
        words = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}
        config = {"num_local_experts": 3, "num_experts_per_tok": 2, "quantization_config": words}

        assert torch.equal(result(load(second, first, config=config)), result(load(made, first)))
        assert "must be 8 in every place" in refused(made.tensors, first, config=config)

    def test_an_activation_that_no_gate_is_for(self) -> None:
        """A checkpoint whose gates were lost is no model with SiLU between its products."""
        [encoding] = by_name("bf16")
        made = make("nemotron_h", encoding, INTERMEDIATE)
        said = {"num_experts": 3, "num_experts_per_tok": 2}
        read = jitgen.MoELayer.from_checkpoint
        found = read(made.tensors, PREFIX, config={**said, "mlp_hidden_act": "relu2"})

        assert found.config.activation == "relu2"
        for config, text in (
            (said, "activation: is required for experts without gates"),
            ({**said, "hidden_act": "silu"}, "hidden_act = 'silu', and a layer computes relu2"),
            ({**said, "swiglu_limit": 7.0}, "swiglu_limit, and these names are of experts without"),
        ):
            with pytest.raises(InputError, match=text):
                read(made.tensors, PREFIX, config=config)

    def test_ranks_that_do_not_divide(self) -> None:
        [encoding] = by_name("bf16")
        made = make("mixtral", encoding, INTERMEDIATE)

        assert refused(made.tensors, encoding, ranks=3).startswith("ranks: must divide the 320")
        assert refused(made.tensors, encoding, ranks=2, rank=2).startswith("rank: ")
        assert refused(made.tensors, encoding, ranks=0).startswith("ranks: ")


class TestStaticScales:
    @pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_5_moe"])
    def test_they_are_left_out_if_asked_to(self, family: str) -> None:
        encoding = by_name("fp8_tensor")[1]
        made = make(family, encoding, INTERMEDIATE)
        each = FAMILIES[family]
        more = dict(made.tensors)
        for module in each.modules:
            for e in range(3):
                own = each.names(module, "input_scale")[0].replace(".E.", f".{e}.")
                more[f"{PREFIX}.{own}"] = torch.ones(3 if each.is_fused else 1)
        text = refused(more, encoding)
        found = load(more, encoding, ignore_input_scales=True)

        assert "input_scale" in text
        assert "ignore_input_scales=True" in text
        assert torch.equal(result(found), result(load(made, encoding)))


class TestFolders:
    def folder(self, path: Path, made: Made, files: int = 4) -> dict[str, str]:
        names, places = list(made.tensors), {}
        for number in range(files):
            file = f"model-{number + 1:05}-of-{files:05}.safetensors"
            part = {name: made.tensors[name].contiguous() for name in names[number::files]}
            save_file(part, path / file)
            places |= dict.fromkeys(part, file)
        index = path / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": places}), encoding="utf-8")
        return places

    def test_a_layer_by_its_number(self, tmp_path: Path) -> None:
        encoding = by_name("fp8_block128")[0]
        made = make("deepseek_v3", encoding, INTERMEDIATE)
        other = {name.replace("layers.3", "layers.14"): t for name, t in made.tensors.items()}
        self.folder(tmp_path, made._replace(tensors={**made.tensors, **other}))
        (tmp_path / "config.json").write_text('{"n_routed_experts": 3, "top_k_experts": 2}')
        found = jitgen.MoELayer.from_checkpoint(tmp_path, layer=3)

        assert torch.equal(result(found), result(load(made, encoding)))
        with pytest.raises(InputError, match=r"layer: 4 of .* has no experts: layers 3, 14"):
            jitgen.MoELayer.from_checkpoint(tmp_path, layer=4)
        for given in ({}, {"prefix": PREFIX, "layer": 3}):
            with pytest.raises(InputError, match="prefix: or layer is required"):
                jitgen.MoELayer.from_checkpoint(tmp_path, **given)  # type: ignore[arg-type]

    def test_a_layer_that_two_models_have(self) -> None:
        [encoding] = by_name("bf16")
        made = make("mixtral", encoding, INTERMEDIATE)
        both = {**made.tensors, **{f"talker.{name}": t for name, t in made.tensors.items()}}

        with pytest.raises(InputError, match=r"below model\.layers\.3\.mlp and talker\."):
            jitgen.MoELayer.from_checkpoint(both, layer=3, top_k=2)

    @pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_5_moe"])
    def test_each_value_is_read_once_and_others_are_not(
        self, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [encoding] = by_name("bf16")
        made = make(family, encoding, INTERMEDIATE)
        self.folder(tmp_path, made)
        read: dict[str, int] = {}
        stored = Source._stored

        def counted(self: Source, name: str, at: tuple[slice, ...]) -> Tensor:
            found = stored(self, name, at)
            read[name] = read.get(name, 0) + found.numel()
            return found

        monkeypatch.setattr(Source, "_stored", counted)
        steps: list[tuple[int, int]] = []
        load_it = jitgen.MoELayer.from_checkpoint
        load_it(
            tmp_path,
            PREFIX,
            top_k=2,
            first_expert=1,
            progress=lambda *step: steps.append(step),
        )
        whole = {name: tensor.numel() for name, tensor in made.tensors.items()}

        assert steps == [(1, 2), (2, 2)]
        for name, count in read.items():
            share = whole[name] * 2 // 3 if FAMILIES[family].is_fused else whole[name]
            assert count in (0, share)
            assert count == 0 or ".experts.0." not in name

    @pytest.mark.nightly
    def test_memory_is_that_of_the_result(self, tmp_path: Path) -> None:
        """A GB in 16 files, in a process of its own: nothing is held twice."""
        hidden, inner, experts = 2048, 1024, 80
        names = {
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }
        for number in range(16):
            part = {
                f"{PREFIX}.experts.{e}.{name}.weight": torch.zeros(size, dtype=torch.bfloat16)
                for e in range(number * 5, number * 5 + 5)
                for name, size in names.items()
            }
            save_file(part, tmp_path / f"model-{number + 1:05}-of-00016.safetensors")
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        )
        size, peak = map(int, done.stdout.split())

        assert size == experts * 3 * hidden * inner * 2
        assert peak < size + 80 * 2**20, "and a file"

    def test_progress_that_raises_ends_the_reading(self) -> None:
        [encoding] = by_name("bf16")

        def stop(_done: int, _all: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            load(make("mixtral", encoding, INTERMEDIATE), encoding, progress=stop)
