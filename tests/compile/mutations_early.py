# SPDX-License-Identifier: Apache-2.0
"""Mistakes in how weights are loaded before the kernel in front has ended."""

from __future__ import annotations

from tests.compile.mutations import LOAD, Mutation, rewrite

_OPEN = "open_stage(loads, state, a_copies)\n"
_COPY = f"full = {_OPEN}            copy_b(b_copies, k, state.index, full)\n"
_COPY_LATER = "copy_b(b_copies, k, state.index, full)"
_OF_A = "copies_of_a(a, work, False)"
_GIVE_A = (
    ("def load_early(schedule, loads, b):", "def load_early(schedule, loads, a, b):"),
    ("load_early(schedule, loads, b)\n", "load_early(schedule, loads, a, b)\n"),
)
"""Edits that hand a over to the function that loads b early, so that a mistake can load a there."""

_WAIT = "cute.arch.griddepcontrol_wait()\n"
_TOO_EARLY = "before griddepcontrol.wait"


def _early(
    name: str, old: str, new: str, kind: str, *names: str, program: str = "early b"
) -> Mutation:
    """Return a mistake in the source of a kernel that loads weights early."""
    edit = rewrite((old, new), *(_GIVE_A if _OF_A in new else ()))
    return Mutation(name=name, program=program, edit=edit, kind=kind, names=names, of_source=True)


EARLY = (
    _early(
        "a is loaded before the kernel in front has ended",
        _COPY,
        f"{_COPY}            copy_a({_OF_A}, k, state.index, full)\n",
        "deadlock",
        "before that, race",
        _TOO_EARLY,
        LOAD,
    ),
    _early(
        "the load warp waits for no kernel",
        f"    {_WAIT}    return num_early",
        "    return num_early",
        "race",
        _TOO_EARLY,
        LOAD,
    ),
    _early(
        "the plan warp waits for no kernel",
        f"    {_WAIT}    plan_tiles(",
        "    plan_tiles(",
        "race",
        _TOO_EARLY,
        "ld.global",
    ),
    _early(
        "b of early stages is loaded twice",
        f"            {_OPEN}            {_COPY_LATER}",
        f"            {_OPEN}        {_COPY_LATER}",
        "deadlock",
        "every thread waits",
        "-8192 bytes pending",
    ),
    _early(
        "an early stage is opened twice",
        "    return num_early",
        "    return num_early - 1",
        "fault",
        "gets 1 arrivals",
    ),
    _early(
        "a stage counts as early that is not",
        "    return num_early",
        "    return num_early + 1",
        "deadlock",
        "every thread waits",
        "-8464 bytes pending",
    ),
    _early(
        "more stages are early than there are",
        "min(schedule.num_k_blocks, NUM_STAGES)",
        "min(schedule.num_k_blocks, NUM_STAGES + 1)",
        "deadlock",
        "every thread waits",
        "8464 bytes pending",
    ),
    _early(
        "more stages are early than there are k-blocks",
        "cutlass.min(schedule.num_k_blocks, NUM_STAGES)",
        "Int32(NUM_STAGES)",
        "exit",
        "in the middle of a phase",
        program="early b, few k-blocks",
    ),
    _early(
        "a later tile counts stages as early",
        "        num_early = Int32(0)\n    # All loads",
        "    # All loads",
        "deadlock",
        "every thread waits",
        "-8464 bytes pending",
    ),
)
"""Mistakes: waits for the kernel in front that are missing, and stages that are filled wrongly."""
