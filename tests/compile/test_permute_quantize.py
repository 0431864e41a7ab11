# SPDX-License-Identifier: Apache-2.0
"""`jitgen.permute_quantize`: kernels on a cpu and on an emulated GPU, calls, refusals, tracers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import jitgen
from jitgen.config.permute_quantize import PermuteQuantizeConfig, Walk
from jitgen.errors import InputError
from jitgen.ops.permute_quantize.call import CALL
from jitgen.ops.permute_quantize.copying import copy_rows
from jitgen.ops.permute_quantize.samples import Sizes, make
from jitgen.ops.permute_quantize.sorting import sort_quantize
from jitgen.ops.permute_quantize.validate import Arguments, validate
from jitgen.runtime.session import current
from jitgen.targets.base import kinds_of
from jitgen.targets.legality import check
from jitgen.targets.permute_space import USUAL
from jitgen.verify import device, verify
from tests import needs
from tests.arguments import int32
from tests.compile.kernels import of_words, often

pytestmark = [needs.compiler, needs.linker, pytest.mark.usefixtures("shared_cache")]

ON_CPU = [config for config in kinds_of(USUAL) if check(config, "cpu")]
OFTEN = {
    "ragged_block128_gather",
    "ragged_block128_sort",
    "masked_row_gather_pow2",
    "contiguous_tensor_gather",
}
ON_GPU = [
    "ragged_block128_scatter_t64_c4_eager",
    "masked_block128_gather_r2_t64_c4_v16_persistent",
    "ragged_row_scatter_pow2_r2_t64_c4_held2",
    "contiguous_tensor_gather_t64_c4",
    "ragged_block128_sort_t64_c4",
    "ragged_mxfp4_gather_floor_t64_c4",
    "ragged_none_scatter_r2_t64_c4_v16_nopdl",
    "ragged_none_sort_t64_c4_v16_nopdl",
    "ragged_row_sort_pow2_t64_c4_held2",
    "masked_nvfp4_gather_t64_c4",
    "ragged_mxfp8_gather_r4_t64_c4_persistent",
    "masked_row_gather_r2_t64_c4",
    "contiguous_block128_gather_pow2_r4_t64_c4",
    "ragged_block128_scatter_r4_t64_c4_persistent",
    "ragged_none_gather_r2_t64_c4",
    "masked_none_gather_t64_c4",
    "masked_tensor_gather_t64_c4",
    "ragged_row_gather_t64_c4",
    "ragged_row_scatter_t64_c4_v16",
    "ragged_block128_scatter_pow2_r2_t64_c4_eager_relayed_persistent",
    "ragged_block128_copy_t64_c4_v16",
    "ragged_block128_copy_t64_c4_v16_relayed",
    "ragged_row_copy_t64_c4_v16_eager",
]
"""Every layout, format and walk; few warps, which all get several tiles."""


config_of = partial(of_words, PermuteQuantizeConfig)


@pytest.mark.parametrize(
    "config", often(ON_CPU, [*map(config_of, OFTEN)], lambda config: config.to_name())
)
def test_right_on_a_cpu(config: PermuteQuantizeConfig) -> None:
    """Bit by bit, twice: the second call is a warm one."""
    sizes = Sizes(rows=(3, 0, 9, 1), top_k=3, k=304)
    for seed in (0, 1):
        case = make(config, sizes, is_exact=False, seed=seed)

        solvers = {Walk.SORT: sort_quantize, Walk.COPY: copy_rows}
        assert case.solve(solvers.get(config.walk, jitgen.permute_quantize)) == 0


def test_columns_of_a_cpu_may_be_odd() -> None:
    given = ragged(columns=37)
    q, scale = jitgen.permute_quantize(**given)
    end = int(given["offs"][-1])
    rows = given["x"][given["permutation"][:end] // 2]
    expected, expected_scale = jitgen.quantize.per_token_group(rows)

    assert scale is not None
    assert torch.equal(q[:end].view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scale[:end], expected_scale)


@pytest.mark.nightly
@pytest.mark.parametrize("words", ON_GPU)
def test_right_on_a_gpu(words: str) -> None:
    verification = verify(config_of(words), "sm_90a")

    assert verification.is_right, verification.to_json()


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ["sm_100a", "sm_120a"])
@pytest.mark.parametrize(
    "words", [ON_GPU[0], "ragged_mxfp4_gather_floor_t64_c4", "ragged_nvfp4_gather_t64_c4"]
)
def test_right_on_blackwell(words: str, arch: str) -> None:
    assert verify(config_of(words), arch).is_right


def ragged(tokens: int = 6, columns: int = 256, top_k: int = 2) -> dict[str, Any]:
    """Return a call with 4 experts, of which this device has the first 3."""
    chance = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, columns, generator=chance).bfloat16()
    ids = torch.randn(tokens, 4, generator=chance).topk(top_k).indices.int()
    offs, permutation, inverse = jitgen.reference.sort_pairs(ids, experts=4, local_experts=3)
    return {"x": x, "permutation": permutation, "top_k": top_k, "offs": offs, "inverse": inverse}


@pytest.mark.parametrize("granularity", ["block128", "row", "none"])
def test_the_gemm_takes_the_result_without_a_copy(granularity: str) -> None:
    given = ragged()
    w = torch.randn(3, 64, 256, generator=torch.Generator().manual_seed(0))
    quantizers: dict[str, Any] = {
        "block128": jitgen.quantize.per_block,
        "row": jitgen.quantize.per_row,
        "none": lambda w: (w.bfloat16(), None),
    }
    b, b_scale = quantizers[granularity](w)
    a, a_scale = jitgen.permute_quantize(**given, format=granularity)
    out = jitgen.grouped_gemm(a, b, a_scale, b_scale, offs=given["offs"])
    end = int(given["offs"][-1])
    tokens = given["permutation"][:end] // 2
    owners = torch.repeat_interleave(
        torch.arange(3), given["offs"].diff(prepend=given["offs"].new_zeros(1))
    )
    expected = torch.einsum("mk,mnk->mn", given["x"][tokens].float(), w[owners])

    assert (out[:end].float() - expected).norm() < 0.06 * expected.norm()


@pytest.mark.parametrize(
    "granularity",
    [
        *("block128", "mxfp8"),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ("nvfp4", "none")),
    ],
)
def test_an_emulated_gpu_gives_the_bits_of_the_reference(granularity: str) -> None:
    """With the inverse and without; the kernel that the selector takes for so few tokens."""
    given = ragged()
    scale = torch.tensor([0.002]) if granularity == "nvfp4" else None
    rows = {name: value for name, value in given.items() if name != "inverse"}
    expected, _ = jitgen.reference.permute_quantize(**rows, format=granularity, global_scale=scale)
    end = int(given["offs"][-1])
    with device("sm_90a", num_sms=1):
        for each in (given, rows):
            q, _ = jitgen.permute_quantize(**each, format=granularity, global_scale=scale)

            assert torch.equal(q[:end].view(torch.uint8), expected[:end].view(torch.uint8))


def test_relayed_scales_come_to_the_rows_of_the_inverse() -> None:
    """A row whose pair says something else is left alone, as q of it is."""
    given = ragged(tokens=40, columns=640)
    end, lost = int(given["offs"][-1]), 5
    given["inverse"].view(-1)[int(given["permutation"][lost])] = -1
    _, expected = jitgen.reference.permute_quantize(
        **{name: value for name, value in given.items() if name != "inverse"}
    )
    with device("sm_90a", num_sms=1):
        _, scale = jitgen.permute_quantize(
            **given, config=config_of("ragged_block128_scatter_t64_c4_relayed")
        )
    assert scale is not None
    assert expected is not None
    found = (scale[:end] == expected[:end]).all(1)

    assert found.sum() == end - 1
    assert not found[lost]


def test_no_tokens_launch_nothing() -> None:
    q, scale = jitgen.permute_quantize(
        torch.empty(0, 512, dtype=torch.bfloat16),
        torch.empty(0, dtype=torch.int32),
        top_k=2,
        offs=torch.zeros(2, dtype=torch.int32),
    )

    assert q.shape == (0, 512)
    assert scale is not None
    assert scale.shape == (0, 4)


def test_other_token_counts_are_warm() -> None:
    """A new number of tokens in a bucket that was seen does not ask the selector."""
    with jitgen.Session() as session:
        jitgen.permute_quantize(**ragged(20))
        session.select = None  # type: ignore[assignment,method-assign]

        jitgen.permute_quantize(**ragged(18))
        assert len(session.memo) == 2


@pytest.mark.parametrize("granularity", ["block128", "row", "tensor", "none"])
def test_warm_calls_validate_nothing(granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = torch.ones(1) if granularity == "tensor" else None
    call = partial(jitgen.permute_quantize, format=granularity, global_scale=scale)
    given = ragged()
    out, _ = call(**given)
    call(**given, out=(out, None))

    def run(*_: Any) -> Any:
        raise AssertionError("a warm call was validated")

    monkeypatch.setitem(jitgen.permute_quantize.__globals__, "run", run)
    q, found = call(**given, out=(out, None))

    assert q is out
    assert call(**given)[0].shape == q.shape
    assert (found is scale) == (granularity in ("tensor", "none"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(6, 256)}, "x: must be bfloat16"),
        ({"x": torch.zeros(7, 256, dtype=torch.bfloat16)}, "permutation: must have shape"),
        ({"permutation": torch.zeros(12)}, "permutation: must be int32"),
        ({"permutation": torch.zeros(2, 6, dtype=torch.int32)}, "permutation: must have 1 dim"),
        ({"top_k": 0}, "top_k: must be an integer from 1 to 32"),
        ({"offs": None}, "one of offs, m_indices and masked_m is required"),
        ({"masked_m": torch.zeros(2, dtype=torch.int32)}, "exactly one of"),
        ({"offs": torch.zeros(0, dtype=torch.int32)}, "at least one group"),
        ({"inverse": torch.zeros(6, 3, dtype=torch.int32)}, "inverse: must have shape"),
        ({"format": "block64"}, "must be one of block128, row, tensor, none, mxfp8"),
        ({"q_dtype": torch.bfloat16}, "q_dtype: must be float8_e4m3fn for block128"),
        ({"global_scale": torch.ones(1)}, "global_scale: belongs to tensor and nvfp4"),
        ({"format": "tensor"}, "global_scale: is required"),
        ({"format": "none", "power_of_two": True}, "power_of_two: is for"),
        ({"rounding": "floor"}, "rounding: is for mxfp8 and mxfp4"),
        (
            {"out": (torch.zeros(12, 128).to(torch.float8_e4m3fn), None)},
            r"out\[0\]: must have shape",
        ),
        ({"out": (torch.zeros(12, 256), None)}, r"out\[0\]: must be float8_e4m3fn"),
        ({"format": "mxfp8"}, "x: cpu has no kernel"),
        ({"config": jitgen.PermuteQuantizeConfig(layout="masked")}, "config: must be for"),
        ({"config": "permute"}, "config: must be a PermuteQuantizeConfig"),
        ({"x": torch.zeros(6, 256, dtype=torch.bfloat16, requires_grad=True)}, "gradient"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    """Also when a right call was remembered before."""
    jitgen.permute_quantize(**ragged())

    with pytest.raises(InputError, match=message):
        jitgen.permute_quantize(**(ragged() | change))


def test_an_inverse_that_no_kernel_reads_is_looked_at_once() -> None:
    with jitgen.Session(), pytest.raises(InputError, match="inverse: must be int32"):
        jitgen.permute_quantize(**(ragged() | {"inverse": torch.zeros(6, 2)}))


def test_gpus_want_whole_vectors() -> None:
    with device("sm_90a", num_sms=1), pytest.raises(InputError, match="a multiple of 16 on sm_90a"):
        jitgen.permute_quantize(**ragged(columns=24))


def test_fake_tensors_get_shapes() -> None:
    given = ragged()
    with FakeTensorMode() as mode:
        faked = {
            name: mode.from_tensor(value) if isinstance(value, Tensor) else value
            for name, value in given.items()
        }
        q, scale = jitgen.permute_quantize(**faked)

    assert q.shape == (12, 256)
    assert scale is not None
    assert scale.shape == (12, 2)
    assert scale.stride() == (1, 12)


@pytest.mark.parametrize("granularity", ["block128", "none"])
def test_tracers_see_one_operation(granularity: str) -> None:
    given = ragged()
    top_k = given.pop("top_k")

    def layer(x: Tensor, permutation: Tensor, offs: Tensor, inverse: Tensor) -> Tensor:
        q, _ = jitgen.permute_quantize(
            *(x, permutation),
            top_k=top_k,
            offs=offs,
            inverse=inverse,
            format=granularity,
        )
        return q.float()

    end = int(given["offs"][-1])
    expected = layer(*given.values())[:end]
    graph = make_fx(layer)(*given.values())
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")

    assert "jitgen.permute_quantize" in graph.code
    assert torch.equal(graph(*given.values())[:end], expected)
    assert torch.equal(compiled(*given.values())[:end], expected)


@pytest.mark.parametrize("granularity", ["row", "none"])
def test_the_operations_of_torch_are_sound(granularity: str) -> None:
    """
    Every row has a group: padding may hold anything. Of float8 torch multiplies
    nothing on a CPU, which half of its checks do.
    """
    from jitgen.ops.permute_quantize.call import CALL
    from jitgen.ops.tracing.library import traced

    permutation = torch.randperm(12, generator=torch.Generator().manual_seed(0)).int()
    given: dict[str, Any] = {
        "x": ragged()["x"],
        "permutation": permutation,
        "top_k": 2,
        "offs": torch.tensor([5, 12], dtype=torch.int32),
        "format": granularity,
    }
    checks = ["test_autograd_registration", "test_faketensor"]
    if granularity == "none":
        checks += ["test_schema", "test_aot_dispatch_dynamic"]
    q, _ = jitgen.permute_quantize(**given)
    given["scale_granularity"] = given.pop("format")  # as graphs call it
    torch.library.opcheck(traced(CALL).operation, (), given, test_utils=checks)
    torch.library.opcheck(
        traced(CALL).operation_out, (torch.zeros_like(q),), given, test_utils=checks
    )


@pytest.mark.parametrize("layout", ["masked_m", "m_indices"])
def test_rows_after_none_are_written(layout: str) -> None:
    """A call with an empty permutation launches nothing, and was remembered for later ones."""
    x = torch.randn(4, 64).bfloat16()
    for rows in (0, 2):
        order = torch.arange(2 * rows, dtype=torch.int32)
        if layout == "masked_m":
            order, groups = order.view(2, rows), torch.full((2,), rows, dtype=torch.int32)
        else:
            groups = torch.zeros(2 * rows, dtype=torch.int32)
        given: dict[str, Any] = {layout: groups}
        q, _ = jitgen.permute_quantize(x, order, top_k=1, format="none", **given)
        assert torch.equal(q.reshape(2 * rows, 64), x[: 2 * rows])


class TestExpectedRows:
    """`expected_m` of masked rows is what the choice is made for; it changes no bit."""

    @staticmethod
    def given(rows: int = 64) -> dict[str, Any]:
        order = torch.arange(4 * rows, dtype=torch.int32).view(4, rows)
        counts = torch.tensor([3, 0, 1, 2], dtype=torch.int32)
        return {"x": ragged(2 * rows)["x"], "permutation": order, "top_k": 2, "masked_m": counts}

    def problem(self, expected_m: int | None, **given: Any) -> Any:
        args = Arguments(**{**self.given(), **given}, expected_m=expected_m)
        return CALL.problem(args, validate(args, current.get()))

    def test_the_problem_has_that_many_tokens(self) -> None:
        """Of 4 matrices and 2 places: as many tokens as twice the rows of a matrix."""
        assert [self.problem(rows).m for rows in (None, 1, 3, 64)] == [128, 2, 6, 128]
        assert self.problem(3, top_k=5).m == 3  # 12 rows of 5 places each

    @pytest.mark.parametrize("layout", ["offs", "m_indices"])
    def test_other_layouts_know_their_rows(self, layout: str) -> None:
        order = torch.arange(256, dtype=torch.int32)
        groups = int32(256) if layout == "offs" else torch.zeros_like(order)
        given = {"permutation": order, "masked_m": None, layout: groups}

        assert self.problem(3, **given) == self.problem(None, **given)

    def test_calls_are_remembered_apart(self) -> None:
        """A warm call is one for what was expected, also of other rows; results are the same."""
        with jitgen.Session() as session:
            for rows in (64, 48):
                given = self.given(rows)
                first, *others = (
                    jitgen.permute_quantize(**given, expected_m=each)[0].float()[0, :3]
                    for each in (None, 3, 8)
                )

                assert all(torch.equal(each, first) for each in others)
            families = [family for each in session.families.values() for family in each]

        assert sorted(family.mean for family in families) == [0, 6, 16]
        assert len(session.memo) == 6

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"])
    def test_mistakes_are_told(self, wrong: Any) -> None:
        with pytest.raises(InputError, match="expected_m: must be an integer of at least 1"):
            jitgen.permute_quantize(**self.given(), expected_m=wrong)
