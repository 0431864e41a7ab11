# SPDX-License-Identifier: Apache-2.0
"""`jitgen select` says which of two ways prepacked weights take; commands know `unpack_weights`."""

from __future__ import annotations

from tests import needs
from tests.cli.conftest import Jitgen

GIVEN = (
    *("-g", "32", "-n", "4096", "-k", "7168", "--b-dtype", "e2m1", "--scales", "mx32"),
    *("--a-scales", "row", "--b-layout", "folded1", "--arch", "sm_90a"),
)
KERNEL = "unpack_weights_folded1_k4_sm_90a"


def test_many_rows(jitgen: Jitgen) -> None:
    done = jitgen("select", *GIVEN, "-m", "131072")
    found = jitgen("select", *GIVEN, "-m", "131072", "--json").document["unpacked"]

    assert "unpack_weights_folded1_sm_90a" in done.out.splitlines()
    assert "unpacked first where exponents of a row differ by at most 14" in done.out
    assert found["is_chosen"]
    assert found["kernels"][0] == "unpack_weights_folded1_sm_90a"
    assert "_e4m3_e4m3_row_bf16_" in found["kernels"][1]
    assert found["workspace_bytes"] == 32 * 4096 * 7172


def test_few_rows(jitgen: Jitgen) -> None:
    done = jitgen("select", *GIVEN, "-m", "256")

    assert "not unpacked first: unpacking the weights" in done.out
    assert "unpack_weights" not in done.out


def test_where_there_is_one_way(jitgen: Jitgen) -> None:
    given = [*GIVEN, "-m", "131072", "--json"]
    assert jitgen("select", *given, "--bias").document["unpacked"]["is_chosen"]
    given[given.index("row")] = "block128"
    assert "unpacked" not in jitgen("select", *given).document


def test_the_operation_itself(jitgen: Jitgen) -> None:
    sizes = ("-g", "32", "-m", "131072", "-k", "7168", "--b-layout", "exact1")
    done = jitgen("select", "--op", "unpack_weights", *sizes, "--arch", "sm_90a")

    assert done.code == 0, done.err
    assert done.out.startswith("unpack_weights_exact1_")


@needs.compiler
@needs.linker
def test_verify(jitgen: Jitgen) -> None:
    done = jitgen("verify", KERNEL, "--modes", "eager", "--problem", "2:72:416")

    assert done.code == 0, done.err
    assert "right" in done.out
