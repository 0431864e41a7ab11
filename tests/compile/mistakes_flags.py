# SPDX-License-Identifier: Apache-2.0
"""Mistakes in `dispatch` and `combine_ranks` with flags, which say that data has come."""

from __future__ import annotations

from typing import Any

from tests.compile.mistakes import _COMBINE, _DISPATCH, _HANGS, _SENDS, _WRONG, Mistake

_FLAGS: dict[str, Any] = {"by_flags": True}
_BLOCKS: dict[str, Any] = {"by_flags": True, "form": "block128", "ops": _DISPATCH}
_SIGNAL = "    signal(inbox, peers, rank, number)\n"
_MEET = "    meet(inbox, state, wait, (rank, ranks))\n"
_TOKENS = """    for item in cutlass.range(first, every * ranks, step, unroll=1):
        send(given, received, inbox, peers, record, (rank, wait), item)
"""
_EXPERTS = """    for pair in cutlass.range(first, record.room * places, step, unroll=1):
        send_expert(given, received, inbox, peers, record, (rank, wait), pair)
"""
_ROWS = "    send_rows(given, received, inbox, peers, record, (rank, wait))\n"
_FLAG = "(Int64(source) + 1) * places * PLACE_BYTES - (Int64(cta) + 1) * FLAG_BYTES"
_FLAG_WORD = "Int64(num_ctas) << 32 | Int64(Uint32(number))"
_NUMBER = "is_waiting = number != wait.number\n            if"
_COUNT = "is_waiting = (number != wait.number) | (cta < num_ctas)"

FLAG_MISTAKES = [
    # PTX ISA, "Release and Acquire Patterns"
    Mistake("flags at .gpu", "st.release.sys", "st.release.gpu", **_FLAGS),
    Mistake("flags without a release", "st.release.sys", "st.relaxed.sys", **_FLAGS),
    Mistake("weak flags", "st.release.sys.global", "st.global", **_FLAGS),
    Mistake("flags are acquired at .gpu", "ld.acquire.sys", "ld.acquire.gpu", **_FLAGS),
    Mistake("flags are not acquired", "ld.acquire.sys", "ld.relaxed.sys", **_FLAGS),
    Mistake("other threads' vectors are not released", "    cute.arch.sync_threads()  # what the",
            "    pass  # what the", counts=(20, 20), **_FLAGS),
    Mistake("one thread alone has waited", "    cute.arch.sync_threads()  # what came",
            "    pass  # what came", counts=(40, 40), **_FLAGS),
    Mistake("flags before tokens", _TOKENS + _SIGNAL, _SIGNAL + _TOKENS, ops=_DISPATCH, **_FLAGS),
    Mistake("flags before sums", _SENDS + _SIGNAL, _SIGNAL + _SENDS, ops=_COMBINE, **_FLAGS),
    Mistake("flags before quantised tokens", _ROWS + _SIGNAL, _SIGNAL + _ROWS, **_BLOCKS),
    Mistake("flags before experts", _EXPERTS + _ROWS + _SIGNAL,
            _SIGNAL + _EXPERTS + _ROWS, **_BLOCKS),
    # waits
    Mistake("no flag", _SIGNAL, "", _HANGS, **_FLAGS),
    Mistake("no wait", _MEET, "", **_FLAGS),
    Mistake("no wait for quantised tokens", _MEET, "", **_BLOCKS),
    Mistake("flags of one CTA alone", "(num_ranks - 1) * MOST_FLAGS, THREADS",
            "num_ranks - 1, THREADS", counts=(40, 40), **_FLAGS),
    Mistake("flags of one rank too few", "(num_ranks - 1) * MOST_FLAGS",
            "(num_ranks - 2) * MOST_FLAGS", **_FLAGS),
    Mistake("any round will do", _NUMBER, "is_waiting = number == 0\n            if",
            counts=(40, 40), **_FLAGS),
    Mistake("no wait for the kernel before", "    cute.arch.griddepcontrol_wait()", "    pass",
            ("race", ""), **_FLAGS),
    Mistake("no round is counted", "number = state[COMBINED] + 1", "number = Int32(1)",
            ("", ""), ops=_DISPATCH, **_FLAGS),
    # how many flags a peer has
    Mistake("as many as this device has CTAs, which are fewer", "(cta < num_ctas)",
            "(cta < cute.arch.grid_dim()[0])", counts=(40, 40), sms=(1, 3), **_FLAGS),
    Mistake("as many as this device has CTAs, which are more", "(cta < num_ctas)",
            "(cta < cute.arch.grid_dim()[0])", _HANGS, counts=(40, 40), sms=(1, 3), **_FLAGS),
    Mistake("nothing says how many", _FLAG_WORD, "Int64(number)",
            counts=(40, 40), **_FLAGS),
    Mistake("one fewer is said", "Int64(num_ctas) << 32", "Int64(num_ctas - 1) << 32",
            counts=(40, 40), **_FLAGS),
    Mistake("one more is said", "Int64(num_ctas) << 32", "Int64(num_ctas + 1) << 32", _HANGS,
            **_FLAGS),
    Mistake("number and count change places", _FLAG_WORD,
            "Int64(number) << 32 | Int64(num_ctas)", _HANGS, **_FLAGS),
    Mistake("the first flag counts before it came", _COUNT, "is_waiting = cta < num_ctas",
            modes="eager,slow-links", counts=(20, 20), **_FLAGS),
    Mistake("the first flag counts for all", _COUNT, "is_waiting = number != wait.number",
            counts=(40, 40), **_FLAGS),
    Mistake("all flags must come", _COUNT, "is_waiting = True", _HANGS, **_FLAGS),
    Mistake("the count of another rank", "source, 0))", "(source + 1) % num_ranks, 0))", _HANGS,
            counts=(40, 40, 1), **_FLAGS),
    Mistake("the last CTA says how many", "source, 0))", "source, MOST_FLAGS - 1))", _HANGS,
            **_FLAGS),
    Mistake("one CTA tells of all", "thread < ranks - 1", "(thread < ranks - 1) & (cta == 0)",
            _HANGS, counts=(40, 40), **_FLAGS),
    # places
    Mistake("one flag for all CTAs", _FLAG, _FLAG.replace("(Int64(cta) + 1) * ", ""),
            counts=(40, 40), **_FLAGS),
    Mistake("flags over vectors", _FLAG,
            "Int64(source) * places * PLACE_BYTES + Int64(cta) * FLAG_BYTES", ("", ""), **_FLAGS),
    Mistake("a flag for the next rank alone", "peers[(rank + 1 + thread) % ranks]",
            "peers[(rank + 1) % ranks]", _HANGS, counts=(1, 1, 1), **_FLAGS),
    Mistake("a flag in the place of its reader", "places, rank, cta)",
            "places, (rank + 1) % ranks, cta)", _HANGS, **_FLAGS),
    Mistake("one place for all sources", "Int64(source) * places * PLACE_BYTES + Int64(place)",
            "Int64(place)", ("", ""), counts=(2, 1, 2), **_FLAGS),
    Mistake("vectors that overlap", "VECTOR_BYTES = 8", "VECTOR_BYTES = 4", ("", ""), **_FLAGS),
    Mistake("words in another order", "[address, words[0], words[1]]",
            "[address, words[1], words[0]]", _WRONG, **_FLAGS),
    Mistake("one word twice", "[address, words[0], words[1]]", "[address, words[0], words[0]]",
            _WRONG, **_FLAGS),
]  # fmt: skip
