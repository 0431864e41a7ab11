# SPDX-License-Identifier: Apache-2.0
"""`jitgen.combine`: kernels on the cpu and on an emulated GPU, calls, refusals, tracers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.config.combine import CombineConfig, Tiling
from jitgen.errors import InputError
from jitgen.ops.combine.samples import Sizes, make
from jitgen.verify import device, verify
from tests import needs
from tests.compile.kernels import of_words

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

KERNELS = [
    "bf16_shared_t64_c4",
    "bf16_r2_l2_t64_c4_persistent",
    "bf16_shared_l8_t64_c4_nopdl",
    "bf16_l16_t64_c2",
    "bf16_shared_weighted_r2_l2_t64_c4_persistent",
]
"""Few warps, which get several tiles where they walk."""


config_of = partial(of_words, CombineConfig)


@pytest.mark.parametrize(
    "config",
    [
        CombineConfig(),
        CombineConfig(has_shared=True),
        CombineConfig(has_shared=True, is_weighted=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_exact", [False, True])
def test_right_on_a_cpu(config: CombineConfig, is_exact: bool) -> None:
    """Twice: the second call is a warm one. Columns may be odd there."""
    for tokens, top_k, n in ((7, 3, 264), (7, 3, 264), (5, 1, 37), (1, 32, 130)):
        case = make(config, Sizes(tokens=tokens, top_k=top_k, n=n), is_exact=is_exact)

        assert case.solve(jitgen.combine) == 0, (tokens, top_k, n)


@pytest.mark.nightly
@pytest.mark.parametrize("words", KERNELS)
def test_right_on_a_gpu(words: str) -> None:
    verification = verify(config_of(words), "sm_90a")

    assert verification.is_right, verification.to_json()


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ["sm_100a", "sm_120a"])
def test_right_on_blackwell(arch: str) -> None:
    assert verify(config_of(KERNELS[0]), arch).is_right


def given(tokens: int = 6, columns: int = 256) -> dict[str, Any]:
    case = make(CombineConfig(), Sizes(tokens=tokens, top_k=3, n=columns), is_exact=True)
    return {name: each for name, each in case.arguments.items() if name != "out"}


def test_an_emulated_gpu_serves_calls() -> None:
    """Rows of the masked layout count one matrix after the other."""
    named = given(5)
    expected = jitgen.reference.combine(**named)
    matrices = named["y"].view(2, 9, 256)
    with device("sm_90a", num_sms=1):
        assert torch.equal(jitgen.combine(**named), expected)
        assert torch.equal(jitgen.combine(**(named | {"y": matrices})), expected)
        config = CombineConfig(tiling=Tiling(loads=2))
        assert torch.equal(jitgen.combine(**named, config=config), expected)


def test_rows_of_a_shared_expert_with_weights() -> None:
    """On both targets, into what is shared too, and in a graph."""
    shared, weights = torch.randn(6, 256).bfloat16(), torch.tensor([1.0, 0.5, -2.0, 0.0, 4.0, 1.0])
    named = given() | {"shared": shared, "shared_weights": weights}
    expected = jitgen.reference.combine(**named)
    plain = jitgen.reference.combine(**given()).float()

    torch.testing.assert_close(
        expected.float(), plain + shared.float() * weights[:, None], rtol=2**-7, atol=0.0
    )
    assert torch.equal(jitgen.combine(**named), expected)
    graph = make_fx(lambda y: jitgen.combine(**(named | {"y": y})))(named["y"])
    assert torch.equal(graph(named["y"]), expected)
    with device("sm_90a", num_sms=1):
        assert (jitgen.combine(**named).float() - expected.float()).abs().max() < 0.2
    assert torch.equal(jitgen.combine(**named, out=shared), expected)


def test_the_way_there_and_back() -> None:
    """Rows that were permuted and combined with weights of 1 are sums of a token's copies."""
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids = torch.arange(9, dtype=torch.int32)[:, None] % 4 + torch.arange(3, dtype=torch.int32)
    offs, permutation, inverse = jitgen.sort_pairs(ids, experts=8, local_experts=5)
    y, _ = jitgen.permute_quantize(
        x, permutation, top_k=3, offs=offs, inverse=inverse, format="none"
    )
    found = jitgen.combine(y, inverse, torch.ones(9, 3), shared=-x)

    assert torch.equal(found, ((inverse >= 0).sum(1, keepdim=True) - 1) * x)


def test_no_tokens_launch_nothing() -> None:
    y = torch.empty(0, 64, dtype=torch.bfloat16)
    found = jitgen.combine(y, torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 2))

    assert found.shape == (0, 64)


def test_no_rows_give_zeros() -> None:
    """On a rank that none of its tokens' experts live on."""
    y = torch.empty(0, 64, dtype=torch.bfloat16)
    nowhere = torch.full((3, 2), -1, dtype=torch.int32)

    assert not jitgen.combine(y, nowhere, torch.ones(3, 2)).any()


def test_warm_calls_validate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    named = given()
    out = jitgen.combine(**named)

    def run(*_: Any) -> Any:
        raise AssertionError("a warm call was validated")

    jitgen.combine(**named, out=out)
    monkeypatch.setitem(jitgen.combine.__globals__, "run", run)

    assert jitgen.combine(**named, out=out) is out
    assert torch.equal(jitgen.combine(**given(5)), jitgen.reference.combine(**given(5)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(21, 256)}, "y: must be bfloat16"),
        ({"y": torch.zeros(4, dtype=torch.bfloat16)}, "y: must have 2 or 3 dimensions"),
        ({"y": torch.zeros(3, 9, 256, dtype=torch.bfloat16)[:, :7]}, "matrices that follow"),
        ({"inverse": torch.zeros(6, 3)}, "inverse: must be int32"),
        ({"inverse": torch.zeros(6, 33, dtype=torch.int32)}, "inverse: must have 1 to 32"),
        ({"topk_weights": torch.zeros(6, 2)}, "topk_weights: must have shape"),
        ({"topk_weights": torch.zeros(6, 3).half()}, "topk_weights: must be float32"),
        ({"shared": torch.zeros(5, 256, dtype=torch.bfloat16)}, "shared: must have shape"),
        ({"shared": torch.zeros(6, 256)}, "shared: must be bfloat16"),
        ({"shared_weights": torch.zeros(6)}, "shared_weights: must be None without shared"),
        (
            {"shared": torch.zeros(6, 256).bfloat16(), "shared_weights": torch.zeros(5)},
            r"shared_weights: must have shape \(6,\), one for each token",
        ),
        ({"out": torch.zeros(6, 256)}, "out: must be bfloat16"),
        ({"out": torch.zeros(1, 256, dtype=torch.bfloat16).expand(6, -1)}, "overlap itself"),
        ({"config": CombineConfig(has_shared=True)}, "config: must be for"),
        ({"config": "combine"}, "config: must be a CombineConfig"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    """Also when a right call was remembered before."""
    jitgen.combine(**given())

    with pytest.raises(InputError, match=message):
        jitgen.combine(**(given() | change))


def test_tracers_see_one_operation() -> None:
    named = given() | {"shared": torch.ones(6, 256, dtype=torch.bfloat16)}

    def layer(y: Tensor, inverse: Tensor, weights: Tensor, shared: Tensor) -> Tensor:
        return jitgen.combine(y, inverse, weights, shared=shared).float() + 1

    expected = layer(*named.values())
    graph = make_fx(layer)(*named.values())
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with FakeTensorMode() as mode:
        assert layer(*(mode.from_tensor(each) for each in named.values())).shape == (6, 256)

    assert "jitgen.combine" in graph.code
    assert torch.equal(graph(*named.values()), expected)
    assert torch.equal(compiled(*named.values()), expected)


def test_the_operations_of_torch_are_sound() -> None:
    from jitgen.ops.combine.call import CALL
    from jitgen.ops.tracing.library import traced

    named = given()
    tensors = (named["y"], named["inverse"], named["topk_weights"])
    for operation, arguments in (
        (traced(CALL).operation, tensors),
        (traced(CALL).operation_out, (torch.empty(6, 256, dtype=torch.bfloat16), *tensors)),
    ):
        torch.library.opcheck(operation, arguments)
