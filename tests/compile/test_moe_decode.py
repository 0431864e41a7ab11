# SPDX-License-Identifier: Apache-2.0
"""A layer of experts in one launch on an emulated GPU, and layers that take it."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import jitgen
from jitgen import quantize
from jitgen.codegen.render import render
from jitgen.config import Arch
from jitgen.config.moe_decode import MoeDecodeConfig
from jitgen.errors import InputError
from jitgen.layer import reference
from jitgen.layer.weights import ExpertWeights
from jitgen.ops.moe_decode.call import moe_decode
from jitgen.ops.moe_decode.exchange import Exchange
from jitgen.ops.moe_decode.samples import Sizes, make
from jitgen.ops.moe_decode.validate import Experts
from jitgen.verify import device, verify
from tests import needs
from tests.compile.kernels import of_words, on_gpu
from tests.compile.mutations import Mutation
from tests.compile.mutations_moe_decode import MISTAKES
from tests.compile.programs import Programs, is_found_by_verify

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

NIGHTLY = pytest.mark.nightly
KERNELS = [
    *("e4m3_block128_room4_nopdl", "e4m3_block128_shared_w3"),
    "e4m3_block128_shared_weighted_w3_s4_room8",
]
HIDDEN, INNER, EXPERTS, TOP_K = 256, 128, 4, 2

config_of = partial(of_words, MoeDecodeConfig)


@NIGHTLY
@pytest.mark.parametrize("words", [*KERNELS, "e4m3_block128", "e4m3_block128_s3_nopdl"])
def test_verified(words: str) -> None:
    """In every quick mode, with other orders of CTAs; all of the code is reached."""
    config = config_of(words)
    found = verify(config, Arch.SM_90A, artifact=on_gpu(config))

    assert found.is_right, found.to_json()


@pytest.mark.sampled(9)
@pytest.mark.parametrize("words", KERNELS)
@pytest.mark.parametrize(
    "numbers", [(2, 2, 3, 128, 128), (1, 3, 2, 256, 640), (8, 8, 12, 128, 128)]
)
def test_sizes(words: str, numbers: tuple[int, ...]) -> None:
    """One and two CTAs' columns, two chunks of h, every token and pair."""
    config = config_of(words)
    sizes = Sizes.of_numbers(config, *numbers)
    for is_exact in (True, False):
        case = make(config, sizes, is_exact=is_exact, seed=sum(numbers))
        report = jitgen.emulate(
            on_gpu(config), *case.tensors, sizes.num_sms, modes="eager", num_sms=sizes.num_sms
        )

        assert case.wrong() == 0
        assert report.is_clean, report.findings


def weights() -> ExpertWeights:
    chance = torch.Generator().manual_seed(7)
    w13 = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=chance) / 16
    w2 = torch.randn(EXPERTS, HIDDEN, INNER, generator=chance) / 11
    (w13, w13_scale), (w2, w2_scale) = quantize.per_block(w13), quantize.per_block(w2)
    return ExpertWeights(w13=w13, w2=w2, w13_scale=w13_scale, w2_scale=w2_scale)


def layer_of(one_launch: bool | None = True, **more: object) -> jitgen.MoELayer:
    config = jitgen.MoEConfig(
        hidden=HIDDEN, intermediate=INNER, experts=EXPERTS, top_k=TOP_K, **more
    )
    return jitgen.MoELayer(config, weights(), max_tokens=16, one_launch=one_launch)


def tokens_of(count: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(count, HIDDEN, generator=chance).bfloat16()
    found = torch.rand(count, EXPERTS, generator=chance).topk(TOP_K)
    return x, found.values.contiguous(), found.indices


class TestLayers:
    @pytest.mark.sampled(6)
    @pytest.mark.parametrize("kind", ["plain", "shared", "weighted"])
    def test_a_layer_takes_one_launch_after_the_other(self, kind: str) -> None:
        """Of the same memory, whose launches are counted on the device."""
        layer = layer_of()
        with device("sm_90a", num_sms=4):
            for count, seed in ((1, 0), (2, 1)):
                x, factors, ids = tokens_of(count, seed)
                extra = {} if kind == "plain" else {"shared": x.flip(0)}
                if kind == "weighted":
                    extra["shared_weights"] = torch.arange(1.0, count + 1.0)
                out = layer(x, factors, ids, **extra)
                wanted = reference.moe(x, layer.weights, factors, ids, layer.config, **extra)

                assert reference.relative_error(out, wanted) < reference.TOLERANCE["block128"]

        workspace = layer.workspace
        assert workspace is not None
        with workspace.lease() as lease:
            assert lease.exchange is not None
            assert lease.exchange.state.tolist() == [2 << 32]

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(("max_tokens", "one_launch"), [(1, True), (2, None)])
    def test_calls_with_more_tokens_than_the_memory_has_make_passes(
        self, max_tokens: int, one_launch: bool | None
    ) -> None:
        """They failed for the size of an argument that the caller does not have."""
        config = layer_of().config
        layer = jitgen.MoELayer(config, weights(), max_tokens=max_tokens, one_launch=one_launch)
        x, factors, ids = tokens_of(max_tokens + 1)
        with device("sm_90a", num_sms=4):
            out = layer(x, factors, ids)
        wanted = reference.moe(x, layer.weights, factors, ids, config)

        assert reference.relative_error(out, wanted) < reference.TOLERANCE["block128"]

    @pytest.mark.parametrize(
        ("one_launch", "more", "tokens"),
        [
            (False, {}, 1),
            (True, {"numerics": "invariant"}, 1),
            (True, {"interleaved": True}, 1),
            (True, {"activation": "swiglu_clamp", "swiglu_limit": 7.0}, 1),
            (True, {}, 9),
            (None, {}, 1),
            (True, {}, 8),
        ],
    )
    def test_the_plan_has_the_kernels_where_a_call_may_take_them(
        self, one_launch: bool | None, more: dict[str, object], tokens: int
    ) -> None:
        """Calls that no kernel computes in one launch are a chain's; a plan lists what may be."""
        layer = layer_of(one_launch, **more)
        found = {each.op for each in layer.configs("sm_90a", tokens)}

        assert ("moe_decode" in found) == (one_launch is not False and not more)
        assert "moe_decode" not in {each.op for each in layer.configs("cpu", tokens)}

    def test_on_a_cpu_it_is_the_chain(self) -> None:
        x, factors, ids = tokens_of(3)

        assert torch.equal(layer_of()(x, factors, ids), layer_of(False)(x, factors, ids))

    def test_it_needs_memory(self) -> None:
        config = layer_of().config
        with pytest.raises(InputError, match="one_launch: must be False without max_tokens"):
            jitgen.MoELayer(config, weights(), one_launch=True)
        with pytest.raises(InputError, match="one_launch: must be False, True or None"):
            jitgen.MoELayer(config, weights(), one_launch="yes")  # type: ignore[arg-type]


def wide() -> Experts:
    """Return an expert of more columns than four chunks have."""
    w13, w2 = (
        torch.ones(shape).to(torch.float8_e4m3fn) for shape in ((1, 256, 2176), (1, 2176, 128))
    )
    return Experts(w13, torch.ones(1, 2, 17), w2, torch.ones(1, 17, 1))


def many() -> Experts:
    """Return one expert 513 times."""
    w13, w2 = (
        torch.ones(1, *shape).to(torch.float8_e4m3fn).expand(513, -1, -1)
        for shape in ((2 * INNER, HIDDEN), (HIDDEN, INNER))
    )
    return Experts(w13, torch.ones(513, 2, 2), w2, torch.ones(513, 2, 1))


class TestRefusals:
    def call(self, tokens: int = 2, num_sms: int = 4, **more: object) -> torch.Tensor:
        x, factors, ids = tokens_of(tokens)
        tensors = weights().tensors
        given = {
            "x": x,
            "topk_ids": ids.int(),
            "topk_weights": factors,
            "experts": Experts(*(tensors[name] for name in Experts._fields)),
            "exchange": Exchange.of(8, TOP_K, INNER),
        }
        with device("sm_90a", num_sms=num_sms):
            return moe_decode(**given | more)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"tokens": 9}, "topk_ids: must be of at most 8 tokens and 64 pairs"),
            ({"num_sms": 3}, "x: must have at most 192 columns for 3 CTAs"),
            ({"exchange": Exchange.of(1, TOP_K, INNER)}, "exchange: must be at least"),
            ({"first_expert": -1}, "first_expert: must be an expert's number"),
            ({"shared_weights": torch.ones(2)}, "shared_weights: must be None without shared"),
            (
                {"x": torch.ones(2, 2176).bfloat16(), "num_sms": 99, "experts": wide()}
                | {"config": config_of("e4m3_block128_room4")},
                "config: must have room for 2176 columns",
            ),
            ({"experts": many()}, "w2: must have at most 512 experts"),
            ({"out": torch.ones(2, 3).bfloat16()}, "out: must have shape"),
        ],
    )
    def test_refused(self, more: dict[str, object], words: str) -> None:
        with pytest.raises(InputError, match=words):
            self.call(**more)  # type: ignore[arg-type]

    def test_a_cpu_has_no_kernel(self) -> None:
        x, factors, ids = tokens_of(1)
        tensors = weights().tensors
        experts = Experts(*(tensors[name] for name in Experts._fields))
        with pytest.raises(InputError, match="must be on a device with kernels of moe_decode"):
            moe_decode(x, ids.int(), factors, experts, Exchange.of(1, TOP_K, INNER))


PROGRAM = "moe_decode_e4m3_block128_w3_sm_90a"


@pytest.fixture(scope="module")
def programs() -> Programs:
    sizes = Sizes.of_numbers(config_of("e4m3_block128_w3"), 3, 2, 5, 256, 128)
    return Programs({"layer": (PROGRAM, sizes)})


@pytest.mark.sampled(90)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found(programs: Programs, mistake: Mutation) -> None:
    assert is_found_by_verify(programs[mistake.program], mistake)


def test_mistakes_find_their_text() -> None:
    """On each push, though most of them are emulated at night."""
    text = render(*MoeDecodeConfig.parse(PROGRAM)).text

    assert [each.name for each in MISTAKES if each.edit(text) == text] == []
