# SPDX-License-Identifier: Apache-2.0
"""What a kernel's config does not need is not in its source."""

from __future__ import annotations

import ast
import re

import pytest

from jitgen.codegen.render import render
from jitgen.codegen.specialise import specialised
from jitgen.config import Config
from tests.unit.unused import unused

KERNELS = (
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c2x1_acc1_sm_90a",
    "grouped_gemm_contiguous_e4m3_e4m3_block128_bf16_t64x128x128_c1x1_acc1_raster1_streamb_sm_90a",
    "grouped_gemm_masked_e4m3_e4m3_block128_bf16_t64x64x128_c1x1_acc1_raster1_streamb_splitk2_bias_sm_90a",
    "grouped_gemm_ragged_bf16_bf16_tensor_bf16_t128x256x64_c2x1_acc1_bias_sm_90a",
    "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_asrow_bexact1_t8x256x128_c1x1_acc1_streamb_sm_90a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t256x128x128_c2x1_acc4_twocta_sm_100a",
    "grouped_gemm_ragged_e2m1_e2m1_nv16_bf16_t128x64x256_c1x1_acc2_bias_sm_100a",
    "grouped_gemm_ragged_e4m3_e2m1_mx32_bf16_t8x64x512_c1x1_acc1_raster1_streamb_sm_120a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc1_sm_120a",
    "grouped_gemm_ragged_e4m3_e4m3_block128_bf16_t32x64x128_c1x1_acc1_cpu",
    "activation_quantize_ragged_block128_swiglu_once_sm_90a",
    "route_softmax_bf16_e128_t512_c1_pdl_sm_90a",
    "permute_quantize_ragged_block128_sort_t64_c16_sm_90a",
    "activation_quantize_ragged_block128_situ_r2_c4_sm_90a",
    "activation_quantize_ragged_block128_relu2_c6_sm_90a",
    "combine_bf16_shared_l8_c6_sm_90a",
    "quantize_ragged_nvfp4_r2_c5_v16_sm_90a",
    "grouped_gemm_wgrad_ragged_bf16_bf16_t128x256x64_c2x1_sm_90a",
    "unpack_weights_exact1_sm_90a",
    "dispatch_bf16_sm_90a",
    "combine_ranks_bf16_shared_sm_90a",
    "moe_decode_e4m3_block128_sm_90a",
    "moe_fc2_dense_e4m3_e4m3_block128_bf16_t64x128x128_c1x1_acc1_streamb_splitk2_sm_90a",
    "moe_fc2_dense_e4m3_e4m3_block128_bf16_t128x128x128_c1x1_acc4_streamb_splitk2_sm_100a",
)
"""Kernels of each family and operation."""

_CALLER = "a call hands it over, whichever kernel of the operation it is"
_CALLED = "its argument is a call, and the pass takes out none but those that it knows"
_WHOLE = "the record is taken apart as a whole, or made with values that are calls"
_RECORD = "records are made with a star, whose length the text does not tell"

LEFT = {
    ("parameter", "activation_quantize num_sms"): _CALLER,
    ("parameter", "route num_sms"): _CALLER,
    ("parameter", "route expert_groups"): _CALLER,
    ("parameter", "route top_groups"): _CALLER,
    ("parameter", "permute_quantize num_sms"): _CALLER,
    ("parameter", "combine num_sms"): _CALLER,
    ("parameter", "unpack_weights num_sms"): _CALLER,
    ("parameter", "make_schedule b"): _CALLED,
    ("parameter", "open_shared num_local"): _CALLED,
    ("parameter", "exchange num_local"): _CALLED,
    ("field", "States sum"): _WHOLE,
    ("field", "States scale"): _WHOLE,
    ("field", "States row_scale"): _WHOLE,
    ("field", "Cursor first"): _WHOLE,
    ("field", "Cursor before"): _WHOLE,
    ("field", "Cursor tiles"): _WHOLE,
    ("field", "Cursor blocks_before"): _WHOLE,
    ("field", "Cursor blocks"): _WHOLE,
    ("field", "Source gmem"): _RECORD,
}
"""What these kernels have and do not use, with the reason; nothing else may come."""


def _specialised(text: str) -> str:
    return specialised(text, frozenset({"entry"})).lstrip("\n")


def test_what_kernels_do_not_use_is_known() -> None:
    """What is new is taken out, or gets a reason; what has gone leaves the list."""
    found = {
        (each.kind, each.where if each.kind == "choice" else f"{each.where} {each.name}")
        for name in KERNELS
        for each in unused(render(*Config.parse(name)).text)
    }

    assert found == LEFT.keys()


@pytest.mark.parametrize("value", [True, False])
def test_a_condition_of_constants_is_decided(value: bool) -> None:
    """The branch that is taken stays, one level further out, with its comments."""
    text = f'''IS_FAST = {value}


def entry(a):
    """Return a."""
    # Which way.
    if cutlass.const_expr(IS_FAST):
        a += 1  # fast
    else:
        a += 2
    return a
'''
    kept = "a += 1  # fast" if value else "a += 2"

    assert (
        _specialised(text)
        == f'''def entry(a):
    """Return a."""
    # Which way.
    {kept}
    return a
'''
    )


def test_a_condition_of_a_value_stays() -> None:
    """Only constants of the file are known."""
    text = "def entry(a, is_fast):\n    if cutlass.const_expr(is_fast):\n        a += 1\n"

    assert _specialised(text) == text


def test_one_side_of_a_choice_stays() -> None:
    """Brackets and neighbours are left alone."""
    text = (
        "SIZE = 2\n\n\ndef entry(a, b):\n    return a if SIZE > 1 else 0, (b if SIZE > 2 else a)\n"
    )

    assert _specialised(text) == "def entry(a, b):\n    return a, a\n"


def test_a_parameter_that_nothing_reads_goes_with_its_arguments() -> None:
    """And so does what was only handed on; a call that then fits into a line is one line."""
    wide = ", ".join(f"argument_{i}" for i in range(8))
    text = f"""def inner(a, unread):
    return a


def outer(a, unread):
    return inner(a, unread)


def entry(a, b, {wide}):
    return outer(
        a + argument_0 + argument_1 + argument_2 + argument_3 + argument_4 + argument_5, unread=b
    )
"""

    assert (
        _specialised(text)
        == f"""def inner(a):
    return a


def outer(a):
    return inner(a)


def entry(a, b, {wide}):
    return outer(a + argument_0 + argument_1 + argument_2 + argument_3 + argument_4 + argument_5)
"""
    )


@pytest.mark.parametrize(
    "use", ["table = (inner,)", "inner(*a)", "inner(a, load(a))"], ids=["value", "star", "effect"]
)
def test_a_parameter_stays_where_calls_are_not_known(use: str) -> None:
    """A function that is handed on, arguments in one star, an argument that does something."""
    text = f"def inner(a, unread):\n    return a\n\n\ndef entry(a):\n    {use}\n    return table\n"

    assert _specialised(text) == text


def test_a_field_that_nothing_reads_goes() -> None:
    """From the class, from where records are made and from where they are replaced."""
    text = """from typing import NamedTuple


class WorkTile(NamedTuple):
    row: int
    is_last: bool = True  # no other group has rows in it


def entry(a):
    work = WorkTile(row=a, is_last=False)
    return work._replace(is_last=True).row
"""

    assert (
        _specialised(text)
        == """from typing import NamedTuple


class WorkTile(NamedTuple):
    row: int


def entry(a):
    work = WorkTile(row=a)
    return work.row
"""
    )


def test_a_note_on_unused_parameters_goes_with_them() -> None:
    """Nothing is unused any more that a linter would tell."""
    text = """def inner(a, unread):  # noqa: ARG001
    return a


def entry(a, b, num_sms):  # noqa: ARG001
    return inner(a, unread=b)
"""

    assert (
        _specialised(text)
        == """def inner(a):
    return a


def entry(a, b, num_sms):  # noqa: ARG001
    return inner(a)
"""
    )


@pytest.mark.parametrize("given", ["None", "True"])
def test_a_parameter_that_is_always_one_constant_becomes_it(given: str) -> None:
    """Of all calls, that is; then conditions of it are decided."""
    text = f"""def inner(a, way):
    return a if cutlass.const_expr(way is {given}) else a + way


def entry(a, b):
    return inner(a, {given})
"""

    assert (
        _specialised(text)
        == """def inner(a):
    return a


def entry(a, b):
    return inner(a)
"""
    )


@pytest.mark.parametrize("given", ["7", "b", "True) + inner(a, None"])
def test_other_parameters_keep_their_names(given: str) -> None:
    """A number that is handed over has a name for the reader; calls may have two constants."""
    text = (
        "def inner(a, way):\n    return a + way\n\n\n"
        f"def entry(a, b):\n    return inner(a, {given})\n"
    )

    assert _specialised(text) == text


def test_a_default_that_no_call_replaces_becomes_a_constant() -> None:
    """Whatever it is; and of a function that sets its parameter nothing changes."""
    text = """def inner(a, rank=0, is_wide=False):
    return a + 2 if is_wide or rank > a else a


def outer(a, rank=0):
    rank = a
    return rank


def entry(a):
    return inner(a) + outer(a)
"""

    assert (
        _specialised(text)
        == """def inner(a):
    return a + 2 if 0 > a else a


def outer(a, rank=0):
    rank = a
    return rank


def entry(a):
    return inner(a) + outer(a)
"""
    )


def test_a_parameter_of_a_kernel_goes_where_it_is_none() -> None:
    """The device has none for it. Others stay, whether they are read or not."""
    text = """@cute.kernel
def kernel(a, limit, unread):
    a += 1 if cutlass.const_expr(limit is None) else limit


def entry(a, b):
    kernel(a, None, b)
"""

    assert (
        _specialised(text)
        == """@cute.kernel
def kernel(a, unread):
    a += 1


def entry(a, b):
    kernel(a, b)
"""
    )


@pytest.mark.parametrize(
    ("made", "read"),
    [("row=a", "True"), ("row=a, is_valid=a", "work.is_valid"), ("a, a", "work.is_valid")],
)
def test_a_field_that_keeps_its_default_is_this_constant(made: str, read: str) -> None:
    """Unless a record is made with another one, by its name or by its place."""
    text = f"""from typing import NamedTuple


class WorkTile(NamedTuple):
    row: int
    is_valid: bool = True


def entry(a):
    work = WorkTile({made})
    return work.row, work.is_valid
"""

    assert f"return work.row, {read}" in _specialised(text)


@pytest.mark.parametrize("value", [1, 2])
def test_numbers_of_ctas_that_are_one_multiply_nothing(value: int) -> None:
    """Nor do they divide; brackets around what is left go, and a constant that is one says so."""
    text = f"""CLUSTER_M = 1
CLUSTER_N = {value}
CLUSTER_SIZE = CLUSTER_M * CLUSTER_N  # of both


def entry(a):
    return a // (CLUSTER_M * a) * CLUSTER_N + CLUSTER_SIZE, (CLUSTER_M, 2)
"""
    size, factor = ("1", "") if value == 1 else ("CLUSTER_N", " * CLUSTER_N")
    found = _specialised(text)

    assert f"CLUSTER_SIZE = {size}  # of both\n" in found
    assert f"return a // a{factor} + CLUSTER_SIZE, (CLUSTER_M, 2)\n" in found


def test_a_loop_of_one_pass_is_its_body() -> None:
    """Its index is 0: sums and products with it are what is left of them; inner loops, too."""
    text = """M_BLOCKS = 1


def entry(a, b):
    for m_block in cutlass.range_constexpr(M_BLOCKS):
        block = m_block * 64 + a  # the first row
        for i in cutlass.range_constexpr(M_BLOCKS + 1):
            a[None, m_block, i] += b[block, 4 * m_block + i].load(m_block * b.size(i))
            if cutlass.const_expr(m_block == M_BLOCKS - 1):
                (b - m_block * 4).free((m_block * i + a) * 3)
    return a
"""

    assert (
        _specialised(text)
        == """M_BLOCKS = 1


def entry(a, b):
    block = a  # the first row
    for i in cutlass.range_constexpr(M_BLOCKS + 1):
        a[None, 0, i] += b[block, i].load(0)
        (b - 0 * 4).free(a * 3)
    return a
"""
    )


@pytest.mark.parametrize(
    ("passes", "body"),
    [
        ("2", "a += i"),
        ("1, 2", "a += i"),
        ("a", "a += i"),
        ("1", "i = a"),
        ("1", "break"),
        ("1", "a += f'{i}'"),
        ("1", "a += [i for i in a]"),
    ],
)
def test_other_loops_stay(passes: str, body: str) -> None:
    """Two passes, one that is not pass 0, a number that is not known, an index that is set."""
    text = (
        "def entry(a):\n"
        f"    for i in cutlass.range_constexpr({passes}):\n        {body}\n    return a\n"
    )

    assert _specialised(text) == text


def test_what_has_an_effect_stays() -> None:
    """A result that nothing reads may come from a call that does something."""
    text = (
        "IS_READ = False\n\n\n"
        "def entry(a):\n    state = store(a)\n    return state if IS_READ else a\n"
    )

    assert "state = store(a)" in _specialised(text)


def test_a_name_in_a_string_with_values_is_a_use() -> None:
    """f-strings read variables, other strings and comments do not."""
    text = (
        "def entry(a, b):\n    return inner(a, b)\n\n\n"
        "def inner(a, b):\n    return f'{a}' + 'b'  # b\n"
    )

    assert "def inner(a):" in _specialised(text)


def test_it_ends_where_nothing_is_left_to_do() -> None:
    """A second time changes nothing."""
    for name in KERNELS[:4]:
        config, arch = Config.parse(name)
        text = render(config, arch).text

        assert specialised(text, frozenset({config.op, "arguments"})) == text


@pytest.mark.parametrize("name", KERNELS)
def test_docstrings_name_no_argument_that_has_gone(name: str) -> None:
    """Functions told of a `group`, a `work` or a `num_early` that had been taken out of them."""
    config, arch = Config.parse(name)
    tree = ast.parse(render(config, arch).text)
    top = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    (entry,) = (_names(function) for function in functions if function.name == config.op)
    told = {
        f"{function.name}: {word}"
        for function in functions
        for word in re.findall(r"`([a-z]\w+)`", ast.get_docstring(function) or "")
        if word not in top | entry | _names(function)
    }

    assert told == set()


def _names(function: ast.FunctionDef) -> set[str]:
    nodes = [*ast.walk(function)]
    found = {node.id for node in nodes if isinstance(node, ast.Name)}
    found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return found | {node.arg for node in nodes if isinstance(node, ast.arg)}
