# SPDX-License-Identifier: Apache-2.0
"""Mistakes that are drawn from the source of a kernel."""

from __future__ import annotations

import ast

from tests.mutants import synchronisation, values

SOURCE = """
def store(rows, state, barriers):
    row = rows[state.index] + 1
    if row < 8:
        with cute.arch.elect_one():
            arrive(barriers)
    cute.arch.sync_warp()
    copy(rows, row)
    state.advance()
    return state
"""


def test_values_are_off_by_one_and_operators_others() -> None:
    found = {(each.old, each.new) for each in values.mutants(SOURCE)}
    assert found == {("1", "2"), ("1", "0"), ("+", "-"), ("8", "9"), ("8", "7"), ("<", "<=")}


def test_synchronisation_lacks_or_changes_places_with_its_neighbours() -> None:
    found = {mutant.applied(SOURCE) for mutant in synchronisation.mutants(SOURCE)}
    sync, copy, advance = (
        "    cute.arch.sync_warp()\n",
        "    copy(rows, row)\n",
        "    state.advance()\n",
    )
    wanted = {
        SOURCE.replace(sync, "    pass\n"),
        SOURCE.replace(advance, "    pass\n"),
        SOURCE.replace(sync + copy, copy + sync),
        SOURCE.replace(copy + advance, advance + copy),
        SOURCE.replace("with cute.arch.elect_one()", "if True"),
        SOURCE.replace("arrive(barriers)", "pass"),
    }
    assert found >= wanted
    assert len(found) == len(wanted) + 1  # and the sync ahead of the branch


def test_every_mistake_is_python() -> None:
    for mutant in (*values.mutants(SOURCE), *synchronisation.mutants(SOURCE)):
        ast.parse(mutant.applied(SOURCE))
        assert mutant.shown(SOURCE).startswith("line ")
