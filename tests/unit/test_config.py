# SPDX-License-Identifier: Apache-2.0
"""Configs: names, JSON, and what is refused at construction."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from hypothesis import given

from jitgen.config import Arch
from jitgen.config.grouped_gemm import (
    Cluster,
    Epilogue,
    GroupedGemmConfig,
    Operands,
    Pipeline,
    Schedule,
    Tile,
)
from jitgen.errors import ConfigError
from jitgen.support.documents import canonical_json
from tests.strategies import configs, legal_sweep
from tests.targets import OWN

CONFIG = GroupedGemmConfig(
    layout="ragged", tile=Tile(m=128, n=192, k=128), cluster=Cluster(m=2, n=1)
)


class TestName:
    def test_is_the_documented_one(self) -> None:
        """The name in the design is the name that is made."""
        assert (
            CONFIG.name("sm_90a")
            == "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x192x128_c2x1_acc1_sm_90a"
        )

    @given(configs)
    def test_is_a_symbol_and_is_read_back(self, config: GroupedGemmConfig) -> None:
        """Every config's name is a C symbol and stands for that config alone."""
        for arch in Arch:
            name = config.name(arch)

            assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
            assert GroupedGemmConfig.parse(name) == (config, arch)

    @pytest.mark.nightly
    def test_is_unique_over_a_broad_sweep(self) -> None:
        """No two legal configs share a name."""
        names = [config.name(arch) for arch in OWN for config in legal_sweep(arch)]

        assert len(names) > 3000
        assert len(set(names)) == len(names)

    @pytest.mark.parametrize(
        "changed",
        [
            {"layout": "masked"},
            {"operands": Operands(a_dtype="bf16")},
            {"operands": Operands(b_dtype="bf16")},
            {"operands": Operands(out_dtype="f32")},
            {"operands": Operands(scale_granularity="row")},
            {"tile": Tile(m=64, n=192, k=128)},
            {"tile": Tile(m=128, n=128, k=128)},
            {"tile": Tile(m=128, n=192, k=64)},
            {"cluster": Cluster(m=1, n=1)},
            {"cluster": Cluster(m=2, n=2)},
            {"pipeline": Pipeline(num_acc_stage=2)},
            {"pipeline": Pipeline(num_ab_stage=4)},
            {"schedule": Schedule(raster=4)},
            {"schedule": Schedule(use_pdl=False)},
            {"schedule": Schedule(stream_b=True)},
            {"schedule": Schedule(split_k=2)},
            {"operands": Operands(a_scale_granularity="none")},
            {"operands": Operands(b_layout="wide1")},
            {"epilogue": Epilogue(bias=True)},
        ],
    )
    def test_every_field_shows(self, changed: dict[str, object]) -> None:
        """A change of any one field changes the name."""
        assert dataclasses.replace(CONFIG, **changed).name("cpu") != CONFIG.name("cpu")

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("", ""),
            ("a/b", ""),
            ("../x", ""),
            ("grouped_gemm", r": it ends with no target \(cpu, .*sm_90a\)"),
            (CONFIG.name("sm_90a") + "x", r": it ends with no target \(cpu, .*sm_90a\)"),
            ("grouped_gem_ragged_cpu", r": it begins with no operation \(.*combine, .*\)"),
            ("combine_fp16_cpu", ": `jitgen configs --op combine` lists those of combine"),
        ],
    )
    def test_nonsense_is_refused(self, name: str, wrong: str) -> None:
        """What is no name raises one error that says which part is wrong and shows a name."""
        with pytest.raises(ConfigError, match=f"is no kernel name{wrong}; one looks like"):
            GroupedGemmConfig.parse(name)

    def test_names_of_prepacked_weights(self) -> None:
        """Scales of a that are not b's, the layout of b, and a bias."""
        name = (
            "grouped_gemm_ragged_e4m3x2_e2m1_mx32_bf16_asrow_bexact1_t8x256x128_c1x1_acc1_bias"
            "_sm_90a"
        )
        config, _ = GroupedGemmConfig.parse(name)

        assert config.operands == Operands(
            a_dtype="e4m3x2",
            b_dtype="e2m1",
            scale_granularity="mx32",
            a_scale_granularity="row",
            b_layout="exact1",
        )
        assert config.epilogue.bias
        assert config.name("sm_90a") == name

    def test_another_version_of_a_layout_is_refused(self) -> None:
        """No call takes a kernel for weights that were prepacked otherwise."""
        name = "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_asrow_bexact2_t8x256x128_c1x1_acc1_sm_90a"
        with pytest.raises(ConfigError, match="b_layout must be one of plain, exact1"):
            GroupedGemmConfig.parse(name)


class TestJson:
    @given(configs)
    def test_round_trip_is_exact(self, config: GroupedGemmConfig) -> None:
        """JSON text and back gives an equal config with equal JSON."""
        text = canonical_json(config.to_json())
        back = GroupedGemmConfig.from_json(json.loads(text))

        assert back == config
        assert canonical_json(back.to_json()) == text

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            ([], "must be a JSON object"),
            (
                {"layout": "ragged", "tile": {"m": 1, "n": 1, "k": 1}, "tiles": 1},
                "no field 'tiles'",
            ),
            ({"layout": "ragged"}, "missing"),
            ({"layout": "ragged", "tile": {"m": 1, "n": 1}}, "missing"),
            ({"layout": "ragged", "tile": {"m": "1", "n": 1, "k": 1}}, "m must be an integer"),
            (
                {"layout": "sparse", "tile": {"m": 1, "n": 1, "k": 1}},
                "layout must be one of ragged",
            ),
        ],
    )
    def test_a_bad_document_is_refused(self, document: object, message: str) -> None:
        """Unknown, missing and bad fields raise errors that name them."""
        with pytest.raises(ConfigError, match=message):
            GroupedGemmConfig.from_json(document)


class TestConstruction:
    @pytest.mark.parametrize("value", [0, -1, 1.5, "128", True, None])
    def test_sizes_are_positive_integers(self, value: object) -> None:
        """A tile side is an integer of at least 1, and a boolean is none."""
        with pytest.raises(ConfigError, match="m must be an integer of at least 1"):
            Tile(m=value, n=1, k=1)

    def test_rasters_have_an_end(self) -> None:
        """A raster whose product with the tiles along N left 32 bits gave wrong results."""
        assert Schedule(raster=1024).raster == 1024
        with pytest.raises(ConfigError, match=r"raster must be at most 1024 \(got 1025\)"):
            Schedule(raster=1025)

    def test_flags_are_booleans(self) -> None:
        """A number is no flag."""
        with pytest.raises(ConfigError, match="use_pdl must be a bool"):
            Schedule(use_pdl=1)

    @pytest.mark.parametrize(
        ("operands", "message"),
        [
            ({"scale_granularity": "none"}, "which a_scale_granularity may be"),
            ({"b_dtype": "e4m3x2"}, "b_dtype must be one type"),
            ({"out_dtype": "e4m3x2"}, "out_dtype must be one type"),
        ],
    )
    def test_what_is_of_a_alone(self, operands: dict[str, str], message: str) -> None:
        """Two parts of a value, and no scales, are for a."""
        with pytest.raises(ConfigError, match=message):
            Operands(**operands)

    def test_words_become_enums(self) -> None:
        """Configs built from words and from enums are equal and hash alike."""
        other = GroupedGemmConfig.from_json(CONFIG.to_json())

        assert hash(other) == hash(CONFIG)
        assert type(CONFIG.layout).__name__ == "Layout"

    def test_configs_are_immutable(self) -> None:
        """A config cannot change after it was checked."""
        with pytest.raises(dataclasses.FrozenInstanceError):
            CONFIG.layout = "masked"


def test_arguments_are_those_that_a_kernel_takes() -> None:
    """As findings call them: alpha and bias behind the scales, and no scales that are not there."""
    plain, scaled, prepacked = (
        GroupedGemmConfig.parse(f"grouped_gemm_ragged_{types}_t8x16x128_c1x1_acc1{bias}_cpu")
        for types, bias in (
            ("e2m1_e2m1_mx32_bf16", ""),
            ("e2m1_e2m1_nv16_bf16", ""),
            ("bf16_e2m1_mx32_bf16_asnone_bwide1", "_bias"),
        )
    )

    assert plain[0].arguments == ("a", "b", "a_scale", "b_scale", "groups", "out")
    assert scaled[0].arguments == ("a", "b", "a_scale", "b_scale", "alpha", "groups", "out")
    assert prepacked[0].arguments == ("a", "b", "b_scale", "bias", "groups", "out")
