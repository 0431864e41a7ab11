# SPDX-License-Identifier: Apache-2.0
"""
Mistakes in `dispatch` that sorts the pairs of tokens and experts, and in the kernel that takes rows
which it leaves in the inbox.
"""

from __future__ import annotations

from typing import Any

from tests.compile.mistakes import (
    _COMBINE,
    _DISPATCH,
    _FOUR,
    _HANGS,
    _SENT,
    _TAGGED,
    _WRONG,
    Mistake,
    one_is_late,
)

_SORTS: dict[str, Any] = {"ops": _DISPATCH, "sorts": True}
_ONCE: dict[str, Any] = {**_SORTS, "replays": 1}  # experts are those of the round before
_BLOCKS: dict[str, Any] = {**_SORTS, "form": "block128"}
_LATE: dict[str, Any] = {**_SORTS, "scenario": one_is_late}
_SYNC = "    cute.arch.sync_threads()\n"
_RACE = ("race", "shared")
_STORED = (
    "received.ids[row, place], received.weights[row, place] = expert, words[1].bitcast(Float32)"
)

SORT_MISTAKES = [
    # what travels
    Mistake("sent at .gpu", "st.relaxed.sys", "st.relaxed.gpu", **_SORTS),
    Mistake("polled at .gpu", "ld.relaxed.sys", "ld.relaxed.gpu", **_SORTS),
    Mistake("weak stores", "st.relaxed.sys.global", "st.global", **_BLOCKS),
    Mistake("weak polls", "ld.relaxed.sys.global", "ld.global", replays=1, most_devices=4,
            **_SORTS),
    Mistake("a vector of words and rounds", _SENT, _FOUR, _WRONG, "slow-links,late-links",
            **_SORTS),
    Mistake("the second element's round alone", _TAGGED, "Int32(elements[0] >> 32) == number",
            _WRONG, "slow-links", **_SORTS),
    Mistake("older rounds will do", "== number", "<= number", _WRONG, "eager,slow-links",
            **_BLOCKS),
    Mistake("no wait", "    return over\n", "    return True\n", _WRONG, "eager,slow-links",
            **_ONCE),
    Mistake("no wait for the kernel before", "    cute.arch.griddepcontrol_wait()", "    pass",
            ("race", ""), **_SORTS),
    Mistake("dispatch is not counted", "state[DISPATCHED] = number", "pass", _WRONG, **_SORTS),
    Mistake("a number that its own kernel writes", "number = state[COMBINED] + 1",
            "number = state[DISPATCHED] + 1", ("race", "state"), counts=(16, 16), **_SORTS),
    # who does what
    Mistake("own tokens are not stored", "every * (ranks + 1), step", "every * ranks, step", _WRONG,
            **_SORTS),
    Mistake("own tokens are sent", "item // every % ranks", "item // every", _WRONG, **_SORTS),
    Mistake("peers get no tokens", "(every + first, every * (ranks + 1)", "(first, every",
            _HANGS, **_SORTS),
    Mistake("two CTAs sort", "if cta == 0:", "if cta < 2:", ("", ""), **_SORTS),
    Mistake("no CTA sorts", "if cta == 0:", "if cta < 0:", ("", ""), **_SORTS),
    Mistake("the first vectors have no CTA", "every + first - THREADS", "every + first", _WRONG,
            **_SORTS),
    Mistake("a step for all CTAs", "step - THREADS\n", "step\n", _WRONG, counts=(20, 20), **_SORTS),
    Mistake("one CTA alone", "CTAS)), 2)", "CTAS)), 1)", _WRONG, counts=(1, 1), **_SORTS),
    Mistake("experts are taken for rows", "if vector % record.length < record.length - ",
            "if vector % record.length < record.length + ", ("", ""), **_SORTS),
    Mistake("scales are not taken", "if vector % record.length < record.length - ",
            "if vector % record.length < record.columns * 1 - 0 * ", _WRONG, **_BLOCKS),
    # experts
    Mistake("own experts are none", "expert = given.ids[token, place]", "expert = Int32(-1)",
            _WRONG, **_SORTS),
    Mistake("experts of rows without a token are loaded", "elif token < given.x.shape[0]:",
            "else:", ("", ""), **_SORTS),
    Mistake("peers' experts are not stored", _STORED, "expert += 0", _WRONG,
            **_SORTS),
    Mistake("weights are taken for experts", "expert = Int32(words[0])",
            "expert = Int32(words[1])", _WRONG, **_SORTS),
    Mistake("experts of the token before", "vector = (token + 1) * record.length - top_k",
            "vector = token * record.length - top_k", ("", ""), **_SORTS),
    Mistake("experts of another rank", "source, token = row // record.room, row % record.room",
            "token, source = row // record.room, row % record.room", ("", ""), **_SORTS),
    Mistake("places of rows", "row, place = pair // top_k, pair % top_k",
            "place, row = pair // top_k, pair % top_k", ("", ""), **_SORTS),
    Mistake("experts from 0 on", "local = expert - order.first_expert", "local = expert * 1",
            _WRONG, **_SORTS),
    Mistake("experts of later ranks", "(local < cute.size(order.offs))", "(local < 99)", ("", ""),
            **_SORTS),
    # the order
    Mistake("counts are not cleared", "        of_warps[thread, w] = 0\n", "        pass\n",
            ("", ""), **_SORTS),
    Mistake("counts are cleared late", "    cute.arch.sync_threads()  # counts are 0",
            "    pass  # counts are 0", _RACE, counts=(20, 20), **_SORTS),
    Mistake("counts are read early", _SYNC + "    total = Int32(0)\n", "    total = Int32(0)\n",
            _RACE, counts=(20, 20), **_SORTS),
    Mistake("sums are read early", "        sums[warp] = end\n" + _SYNC,
            "        sums[warp] = end\n", _RACE, **_SORTS),
    Mistake("starts are read early", "        order.offs[thread] = end\n" + _SYNC,
            "        order.offs[thread] = end\n", _RACE, counts=(20, 20), **_SORTS),
    Mistake("each lane is the first", "popc(lanes & cute.arch.lanemask_lt())",
            "popc(lanes - lanes)", ("", ""), **_SORTS),
    Mistake("no lane is the first", "popc(lanes & cute.arch.lanemask_lt())", "popc(lanes)",
            _WRONG, **_SORTS),
    Mistake("a group has one pair of a warp", "= cute.arch.popc(lanes).to(Int32)", "= Int32(1)",
            _WRONG, counts=(20, 20), **_SORTS),
    Mistake("pairs of the warps before are forgotten", " + of_warps[local, warp] + before",
            " + before", ("", ""), counts=(20, 20), **_SORTS),
    Mistake("groups begin at 0", "starts[thread] = end - total", "starts[thread] = Int32(0)",
            ("", ""), **_SORTS),
    Mistake("where groups begin instead of end", "order.offs[thread] = end\n",
            "order.offs[thread] = end - total\n", _WRONG, **_SORTS),
    Mistake("a warp's own sum twice", "lane < warp else", "lane <= warp else", ("", ""), **_SORTS),
    Mistake("lanes before the one before", "lane >= 1 << power", "lane > 1 << power", _WRONG,
            **_SORTS),
    Mistake("a row behind the last one stays", "if thread >= num_rows:", "if thread > num_rows:",
            _WRONG, **_SORTS),
    Mistake("rows are cleared", "if thread >= num_rows:", "if thread >= 0:", ("", ""), **_SORTS),
    Mistake("pairs elsewhere have rows", "row, top_k = Int32(-1), order", "row, top_k = Int32(0), "
            "order", _WRONG, **_SORTS),
    # ranks that are masked
    Mistake("experts of a masked rank stay", "    if not is_masked(wait, source):\n        words",
            "    if wait.number > 0:\n        words", ("", ""), **_LATE),
    Mistake("a masked rank has expert 0", "Uint32(0) if is_row else Uint32(0xFFFFFFFF), ",
            "Uint32(0), ", _WRONG, **_LATE),
    Mistake("one masked waits once more", "is_waiting = not is_masked(wait, source)",
            "is_waiting = wait.number > 0", _WRONG, **_LATE),
]  # fmt: skip

_LEAVES: dict[str, Any] = {"ops": _DISPATCH, "sorts": True, "leaves": True}
_TAKES: dict[str, Any] = {**_LEAVES, "ops": ("permute_quantize",)}
_AWAITS: dict[str, Any] = {**_TAKES, "pauses": 1, "counts": (6, 6)}  # rows come after experts
_AGAIN = "        while is_waiting:\n            found = load_elements"

LEFT_MISTAKES = [
    Mistake("sent at .gpu", "st.relaxed.sys", "st.relaxed.gpu", **_LEAVES),
    Mistake("weak stores", "st.relaxed.sys.global", "st.global", **_LEAVES),
    Mistake("own tokens are not sent", "every * (ranks + 1), step", "every * ranks, step", _HANGS,
            **_LEAVES),
    Mistake("all is sent to the next rank", "peers[(rank + distance) % ranks]",
            "peers[(rank + 1) % ranks]", _HANGS, counts=(1, 1, 1), **_LEAVES),
    Mistake("sent to the place of the reader", "inbox, mode=[1]), rank, vector)",
            "inbox, mode=[1]), (rank + 1) % ranks, vector)", _WRONG, **_LEAVES),
    Mistake("no CTA sorts", "if cta == 0:", "if cta < 0:", ("", ""), **_LEAVES),
    Mistake("experts are not stored", _STORED, "expert += 0", _WRONG, **_LEAVES),
    Mistake("experts of the token before", "vector = (token + 1) * record.length - top_k",
            "vector = token * record.length - top_k", ("", ""), **_LEAVES),
    Mistake("experts of another rank", "source, token = row // record.room, row % record.room",
            "token, source = row // record.room, row % record.room", ("", ""), **_LEAVES),
    Mistake("dispatch is not counted", "state[DISPATCHED] = number", "pass", _WRONG, **_LEAVES),
    # the kernel that takes rows
    Mistake("polled at .gpu", "ld.relaxed.sys", "ld.relaxed.gpu", **_TAKES),
    Mistake("weak polls", "ld.relaxed.sys.global", "ld.global", replays=1, most_devices=4,
            **_TAKES),
    Mistake("older rounds will do", "== number", "<= number", _WRONG, "slow-links,late-links",
            **_AWAITS),
    Mistake("no wait", _AGAIN, _AGAIN.replace("is_waiting:", "is_waiting & (number < 0):"), _WRONG,
            "slow-links,late-links", **_AWAITS),
    Mistake("no wait for the kernel before", "    cute.arch.griddepcontrol_wait()", "    pass",
            ("race", ""), **_TAKES),
    Mistake("the round before", "state[DISPATCHED])", "state[DISPATCHED] - 1)", ("", ""), **_TAKES),
    Mistake("rows of rank 0", "source, place = token // rows.room", "source, place = 0 * token",
            _WRONG, **_TAKES),
    Mistake("rows of tokens behind", "token % rows.room * rows.length", "token * rows.length",
            ("", ""), **_TAKES),
    Mistake("room for one token more", "tokens // inbox.shape[0]", "tokens // inbox.shape[0] + 1",
            ("", ""), counts=(6, 6), **_TAKES),
    Mistake("rows without their experts", "columns // 4 + top_k", "columns // 4", ("", ""),
            **_TAKES),
    Mistake("vectors that overlap", "vector * PARTS", "vector", _WRONG, **_TAKES),
    Mistake("one vector twice", "address + part * VECTOR_BYTES", "address", _WRONG, **_TAKES),
    Mistake("words in another order", "for i in range(2))", "for i in (1, 0))", _WRONG, **_TAKES),
    # who may write again
    Mistake("sums are sent before rows are taken", "    cute.arch.griddepcontrol_wait()",
            "    pass", ("race", ""), **{**_LEAVES, "ops": _COMBINE}),
]  # fmt: skip
"""
Mistakes where rows stay in the inbox. How a vector is polled is the same text as in `dispatch`, in
which a mistake in that is found.
"""
