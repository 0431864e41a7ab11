# SPDX-License-Identifier: Apache-2.0
"""
`jitgen.activation_quantize`: results, what it hands to the next GEMM, refusals, memo, tracers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.config import Arch
from jitgen.config.activation_quantize import ActivationQuantizeConfig, Tiling
from jitgen.errors import InputError
from jitgen.runtime.session import current
from jitgen.verify.gpu import device
from tests import needs
from tests.activation_cases import make, options_of

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

CASES = [
    ActivationQuantizeConfig(layout="ragged"),
    ActivationQuantizeConfig(layout="masked", scale_granularity="row", power_of_two=True),
    ActivationQuantizeConfig(layout="contiguous", scale_granularity="tensor"),
    ActivationQuantizeConfig(
        layout="ragged", scale_granularity="none", activation="swiglu_oai", interleaved=True
    ),
]


def options(kernel: ActivationQuantizeConfig, scale: Tensor | None) -> dict[str, Any]:
    found = options_of(kernel)
    return found | {"global_scale": scale} if kernel.scale_granularity == "tensor" else found


def ragged(rows: int = 20, columns: int = 512) -> dict[str, Any]:
    chance = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=chance).bfloat16()
    return {"x": x, "offs": torch.tensor([rows // 2, rows], dtype=torch.int32)}


@pytest.mark.parametrize("kernel", CASES, ids=str)
def test_right(kernel: ActivationQuantizeConfig) -> None:
    """Twice: the second call is a warm one."""
    name = {"ragged": "offs", "contiguous": "m_indices", "masked": "masked_m"}[kernel.layout]
    for seed in (0, 1):
        case = make(kernel, [3, 0, 9, 5], 264, is_exact=True, seed=seed)
        x, groups = case.arguments[:2]
        q, scale = jitgen.activation_quantize(
            x, **{name: groups}, **options(kernel, case.scale), out=case.out
        )

        assert q is case.q
        assert scale is case.scale
        assert case.wrong(is_exact=True) == ""


@pytest.mark.parametrize("granularity", ["block128", "row"])
def test_the_next_gemm_takes_the_result_without_a_copy(granularity: str) -> None:
    given = ragged()
    w = torch.randn(2, 64, 256, generator=torch.Generator().manual_seed(0))
    quantize = jitgen.quantize.per_block if granularity == "block128" else jitgen.quantize.per_row
    b, b_scale = quantize(w)
    q, scale = jitgen.activation_quantize(**given, format=granularity)

    assert scale is not None
    assert granularity == "row" or jitgen.quantize.is_kernel_layout(scale)
    found = jitgen.grouped_gemm(q, b, scale, b_scale, offs=given["offs"])
    y = torch.nn.functional.silu(given["x"][:, :256].float()) * given["x"][:, 256:].float()
    expected = torch.cat([y[:10] @ w[0].T, y[10:] @ w[1].T])
    assert (found.float() - expected).norm() < 0.05 * expected.norm()


def test_no_rows_launch_nothing() -> None:
    q, scale = jitgen.activation_quantize(
        torch.empty(0, 512, dtype=torch.bfloat16), offs=torch.zeros(2, dtype=torch.int32)
    )

    assert q.shape == (0, 256)
    assert scale is not None
    assert scale.shape == (0, 2)


def test_other_row_counts_are_warm() -> None:
    """A new number of rows in a bucket that was seen does not ask the selector."""
    with jitgen.Session() as session:
        jitgen.activation_quantize(**ragged(20))
        session.select = None  # type: ignore[assignment,method-assign]

        jitgen.activation_quantize(**ragged(18))
        assert len(session.memo) == 2


def of_layout(layout: str) -> dict[str, Any]:
    """Return a call with 2 groups of 10 rows."""
    x = ragged()["x"]
    if layout == "masked":
        return {"x": x.view(2, 10, 512), "masked_m": torch.tensor([9, 0], dtype=torch.int32)}
    if layout == "contiguous":
        return {"x": x, "m_indices": torch.arange(20, dtype=torch.int32) // 10}
    return ragged()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("granularity", ["block128", "row", "tensor", "none"])
def test_warm_calls_validate_nothing(granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every layout, with and without an output."""
    scale = torch.ones(1) if granularity == "tensor" else None
    named = {"format": granularity, "global_scale": scale}
    given = [of_layout(layout) | named for layout in ("ragged", "masked", "contiguous")]
    results = [jitgen.activation_quantize(**each) for each in given]
    for each, (q, _) in zip(given, results, strict=True):
        jitgen.activation_quantize(**each, out=(q, None))

    def run(*_: Any) -> Any:
        raise AssertionError("a warm call was validated")

    monkeypatch.setitem(jitgen.activation_quantize.__globals__, "run", run)
    for each, (out, _) in zip(given, results, strict=True):
        q, found = jitgen.activation_quantize(**each, out=(out, None))

        assert q is out
        assert jitgen.activation_quantize(**each)[0].shape == q.shape
        assert (found is scale) == (granularity in ("tensor", "none"))


def test_both_operations_remember_in_one_place() -> None:
    """And groups of another number are another family: a choice depends on them."""
    given = of_layout("masked")
    jitgen.activation_quantize(**given)
    jitgen.activation_quantize(
        given["x"].view(4, 5, 512), masked_m=torch.ones(4, dtype=torch.int32)
    )
    q, scale = jitgen.activation_quantize(**ragged(), format="row")
    b = torch.zeros(2, 16, 256).to(q.dtype)
    jitgen.grouped_gemm(q, b, scale, torch.ones(2, 16), offs=ragged()["offs"])

    assert len(current.get().memo) == len(current.get().families) == 4


def test_contiguous_calls_choose_by_their_own_rows() -> None:
    """What is expected of a group they do not know: it must not join all numbers of rows."""
    given = of_layout("contiguous")
    jitgen.activation_quantize(**given, expected_m=4)
    ((family,),) = current.get().families.values()

    assert (family.mean, family.groups) == (0, 1)


@pytest.mark.parametrize(
    ("given", "change", "message"),
    [
        ({"format": "tensor"}, {"global_scale": torch.ones(2)}, "global_scale: must have shape"),
        (
            {"format": "tensor"},
            {"global_scale": torch.ones(1).half()},
            "global_scale: must be float32",
        ),
        ({}, {"offs": torch.tensor([10, 20])}, "offs: must be int32"),
        ({}, {"x": torch.zeros(20, 1024).bfloat16()[:, ::2]}, "x: must be contiguous"),
    ],
)
def test_what_the_entry_refuses_is_told(
    given: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    """The key of a warm call does not hold these: the entry sees them, and the rules are asked."""
    scale = {"global_scale": torch.ones(1)} if given else {}
    jitgen.activation_quantize(**(ragged() | given | scale))

    with pytest.raises(InputError, match=message) as caught:
        jitgen.activation_quantize(**(ragged() | given | scale | change))
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(20, 512)}, "x: must be bfloat16"),
        ({"x": torch.zeros(20, 511, dtype=torch.bfloat16)}, "columns of gates"),
        ({"offs": None}, "one of offs, m_indices and masked_m is required"),
        ({"masked_m": torch.zeros(2, dtype=torch.int32)}, "exactly one of"),
        ({"offs": torch.zeros(0, dtype=torch.int32)}, "at least one group"),
        ({"format": "block64"}, "must be one of block128, row, tensor, none"),
        ({"activation": "tanh"}, "must be one of swiglu, swiglu_oai"),
        ({"activation": "swiglu_oai"}, "limit: is required for swiglu_oai"),
        ({"swiglu_limit": 7.0}, "swiglu_limit: belongs to swiglu_oai"),
        ({"activation": "swiglu_oai", "swiglu_limit": 7.0, "swiglu_alpha": float("nan")}, "finite"),
        ({"global_scale": torch.ones(1)}, "global_scale: belongs to tensor:"),
        ({"format": "tensor"}, "global_scale: is required"),
        ({"format": "none", "power_of_two": True}, "power_of_two: is for"),
        ({"interleaved": "yes"}, "interleaved: must be True or False"),
        (
            {"out": (torch.zeros(20, 128).to(torch.float8_e4m3fn), None)},
            r"out\[0\]: must have shape",
        ),
        ({"out": (torch.zeros(20, 256), None)}, r"out\[0\]: must be float8_e4m3fn"),
        ({"expected_m": 0}, "expected_m: must be"),
        ({"config": jitgen.ActivationQuantizeConfig(layout="masked")}, "config: must be for"),
        ({"config": "silu"}, "config: must be an ActivationQuantizeConfig"),
        ({"x": torch.zeros(20, 512, dtype=torch.bfloat16, requires_grad=True)}, "gradient"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    """Also when a right call was remembered before."""
    jitgen.activation_quantize(**ragged())

    with pytest.raises(InputError, match=message):
        jitgen.activation_quantize(**(ragged() | change))


def test_sm_90a_wants_whole_vectors() -> None:
    with device("sm_90a", num_sms=1), pytest.raises(InputError, match="a multiple of 8 on sm_90a"):
        jitgen.activation_quantize(**ragged(columns=24))


def test_an_emulated_gpu_serves_calls() -> None:
    given = ragged(rows=6)
    tiling = Tiling(rows=1, threads=64, ctas_per_sm=16)
    config = jitgen.ActivationQuantizeConfig(layout="ragged", tiling=tiling)
    with device("sm_90a", num_sms=1):
        q, scale = jitgen.activation_quantize(**given, config=config)
    expected_q, expected_scale = jitgen.reference.activation_quantize(**given)

    assert (
        config.name(Arch.SM_90A) == "activation_quantize_ragged_block128_swiglu_r1_t64_c16_sm_90a"
    )
    assert scale is not None
    assert expected_scale is not None
    assert torch.allclose(scale, expected_scale, rtol=1e-6)
    assert (q.float() - expected_q.float()).norm() < 0.01 * expected_q.float().norm()


def test_fake_tensors_get_shapes() -> None:
    given = ragged()
    with FakeTensorMode() as mode:
        faked = {name: mode.from_tensor(value) for name, value in given.items()}
        q, scale = jitgen.activation_quantize(**faked)

    assert q.shape == (20, 256)
    assert scale is not None
    assert scale.shape == (20, 2)
    assert scale.stride() == (1, 20)


@pytest.mark.parametrize("granularity", ["block128", "none"])
def test_make_fx_records_the_operation(granularity: str) -> None:
    given = ragged()

    def layer(x: Tensor, offs: Tensor) -> Tensor:
        return jitgen.activation_quantize(x, offs=offs, format=granularity)[0].float()

    graph = make_fx(layer)(*given.values())

    assert "jitgen.activation_quantize" in graph.code
    assert torch.equal(graph(*given.values()), layer(*given.values()))


def test_torch_compile_sees_one_operation() -> None:
    given = ragged()

    def layer(x: Tensor, offs: Tensor) -> Tensor:
        return jitgen.activation_quantize(x, offs=offs)[0].float() + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")

    assert torch.equal(compiled(*given.values()), layer(*given.values()))
