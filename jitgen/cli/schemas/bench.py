# SPDX-License-Identifier: Apache-2.0
"""What the suites of ``jitgen bench`` print."""

from __future__ import annotations

from jitgen.bench import OWN, REPORTS, SUITES
from jitgen.cli.run import Check, Times
from jitgen.cli.schemas.vocabulary import (
    ANY,
    ARCH,
    BYTES,
    COUNT,
    FLAG,
    KEY,
    NAME,
    NUMBER,
    OK,
    PROBLEM,
    REASON,
    SECONDS,
    TEXT,
    US,
    WHOLE,
    items,
    named,
    nullable,
    one_of,
    record,
    told,
)
from jitgen.support.codec import Schema, schema

_CONDITIONS = named(TEXT, "what figures depend on")
_ROW = record(
    {
        "suite": TEXT,
        "what": TEXT,
        "value": NUMBER,
        "unit": TEXT,
        "budget": nullable(NUMBER),
        "is_rate": FLAG,
        "ok": OK,
        "detail": TEXT,
    }
)
_SUITE = record({"suite": TEXT, "ok": OK, "conditions": _CONDITIONS, "rows": items(_ROW)})
_LISTED = record({"kernels": items(NAME)})
_CASE = record(
    {
        "layout": TEXT,
        "groups": COUNT,
        "rows_per_group": COUNT,
        "n": COUNT,
        "k": COUNT,
        "max_rows": nullable(COUNT),
        "spread": NUMBER,
    }
)
_NOTES = named(TEXT, "side")
_REPORT = record(
    {
        "ok": OK,
        "suite": TEXT,
        "report_schema": WHOLE,
        "conditions": _CONDITIONS,
        "copy_bytes_per_s": NUMBER,
        "kernels": items(record({"kernel": NAME, "reason": REASON})),
        "measured": items(
            record(
                {
                    "section": one_of("public", "one_token", "sustained", "host"),
                    "case": _CASE,
                    "kernel": NAME,
                    "flop": COUNT,
                    "bytes": BYTES,
                    "launches": COUNT,
                    "seconds": named(items(SECONDS), "side"),
                    "missing": _NOTES,
                    "detail": TEXT,
                    "median_us": named(US, "side"),
                    "ratio": named(nullable(NUMBER), "peer"),
                }
            )
        ),
        "accuracy": items(
            record({"case": _CASE, "errors": named(NUMBER, "side"), "missing": _NOTES})
        ),
        "notes": _NOTES,
        "geometric_mean": named(nullable(NUMBER), "peer"),
        "noise": nullable(NUMBER),
        "targets": items(_ROW),
    }
)
_FP4 = record(
    {
        "ok": OK,
        "suite": TEXT,
        "report_schema": WHOLE,
        "conditions": _CONDITIONS,
        "copy_bytes_per_s": NUMBER,
        "found": items(
            record(
                {
                    "case": _CASE,
                    "sides": named(
                        record(
                            {
                                "seconds": items(SECONDS),
                                "bytes": BYTES,
                                "error": NUMBER,
                                "kernel": NAME,
                                "median_us": US,
                            }
                        ),
                        "side",
                    ),
                    "missing": _NOTES,
                    "candidates": named(named(SECONDS, "kernel"), "side"),
                    "ratio": named(nullable(NUMBER), "side"),
                }
            )
        ),
        "notes": _NOTES,
        "absent": _NOTES,
        "launching": TEXT,
        "targets": items(_ROW),
    }
)
_LAYER = record(
    {
        "ok": OK,
        "suite": TEXT,
        "conditions": _CONDITIONS,
        "notes": _NOTES,
        "copy_rate": NUMBER,
        "cases": items(
            record(
                {
                    "case": named(COUNT, "size"),
                    "active": COUNT,
                    "floor_us": US,
                    "times_us": named(US, "side"),
                    "spreads": named(NUMBER, "side"),
                    "errors": named(NUMBER, "side"),
                    "steps_us": named(US, "launch"),
                    "missing": _NOTES,
                    "notes": _NOTES,
                }
            )
        ),
        "targets": items(_ROW),
    }
)
_PLAN = record(
    {
        "suite": TEXT,
        "ok": OK,
        "plan": TEXT,
        "arch": ARCH,
        "conditions": _CONDITIONS,
        "total_s": SECONDS,
        "left_out": items(TEXT),
        "beyond_most": COUNT,
        "rows": items(
            record(
                {
                    "problem": PROBLEM,
                    "kernel": NAME,
                    "calls": NUMBER,
                    "time_us": US,
                    "predicted_us": US,
                    "share": nullable(NUMBER),
                }
            )
        ),
    }
)
_KERNEL = record(
    {
        "ok": OK,
        "conditions": _CONDITIONS,
        "kernels": items(record({"title": TEXT, "name": NAME, "key": KEY})),
        "problems": items(
            record(
                {"checks": items(schema(Check)), "times": nullable(schema(Times)), "error": REASON}
            )
        ),
    }
)
_LOST = record(
    {
        "case": TEXT,
        "chosen": NAME,
        "chosen_us": US,
        "best": NAME,
        "best_us": US,
        "regret": told(NUMBER, "time of the choice over that of the best, less 1"),
    }
)
_CHOICE = record(
    {
        "ok": OK,
        "suite": TEXT,
        "report_schema": WHOLE,
        "family": TEXT,
        "seed": WHOLE,
        "conditions": _CONDITIONS,
        "failures": named(REASON, "case"),
        "kernels": items(NAME),
        "found": items(
            record(
                {
                    "problem": PROBLEM,
                    "routing": named(ANY),
                    "times_us": told(items(items(NUMBER)), "number of a kernel, and its time"),
                    "took_s": SECONDS,
                }
            )
        ),
        "rules": named(named(NUMBER), "rule"),
        "worst": named(items(_LOST), "rule"),
    }
)
_TRANSFORMERS = record(
    {
        "suite": TEXT,
        "ok": OK,
        "conditions": _CONDITIONS,
        "cases": items(
            record(
                {
                    "model": TEXT,
                    "work": record({"texts": COUNT, "prompt": COUNT, "new": COUNT}),
                    "tokens_per_s": named(NUMBER, "side"),
                    "spreads": named(NUMBER, "side"),
                    "errors": named(NUMBER, "side"),
                    "missing": _NOTES,
                }
            )
        ),
        "targets": items(_ROW),
    }
)
_OF_OWN = {
    "transformers": (_TRANSFORMERS, _LISTED),
    "choice": (_CHOICE, record({"suite": TEXT, "kernels": items(NAME)})),
    "hopper-fp4": (_FP4, _LISTED),
    "layer": (_LAYER, _LISTED),
    "plan": (_PLAN,),
    "kernel": (_KERNEL,),
    "gradients": (_SUITE,),
}

DOCUMENTS: dict[str, tuple[Schema, ...]] = {
    **{f"bench {name}": (_SUITE,) for name in (*SUITES, "all")},
    **{f"bench {name}": (_REPORT,) for name in REPORTS},
    **{f"bench {name}": _OF_OWN[name] for name in OWN},
}
