# SPDX-License-Identifier: Apache-2.0
"""What commands print that measure, that report on the machine, or that start a service."""

from __future__ import annotations

from jitgen.bench import OWN, REPORTS, SUITES
from jitgen.cli.schemas.kernels import CHECK, TIMES
from jitgen.cli.schemas.words import (
    ANY,
    ARCH,
    BYTES,
    COUNT,
    FILE,
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
    WHEN,
    WHOLE,
    Schema,
    items,
    named,
    nullable,
    one_of,
    record,
    told,
)

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
            record({"checks": items(CHECK), "times": nullable(TIMES), "error": REASON})
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
_OF_OWN = {
    "choice": (_CHOICE, record({"suite": TEXT, "kernels": items(NAME)})),
    "hopper-fp4": (_FP4, _LISTED),
    "layer": (_LAYER, _LISTED),
    "plan": (_PLAN,),
    "kernel": (_KERNEL,),
    "gradients": (_SUITE,),
}
_RECORD = record(
    {
        "schema": WHOLE,
        "problem": PROBLEM,
        "winner": TEXT,
        "times_us": named(US, "kernel"),
        "excluded": named(REASON, "kernel"),
        "date": WHEN,
    }
)
_TRIAL = record(
    {
        "name": NAME,
        "state": one_of("known", "measured", "excluded", "missing", "left"),
        "cost_us": US,
        "time_us": nullable(US),
        "ratio": nullable(NUMBER),
        "reason": REASON,
        "seconds": SECONDS,
    }
)
_SPACE = {
    "problem": TEXT,
    "chosen": NAME,
    "estimate_s": SECONDS,
    "pruned": COUNT,
    "refused": COUNT,
}
_PLANNED = record({"name": NAME, "key": KEY, "cost_us": US, "compiled": FLAG, "seconds": SECONDS})
_CALL = record({"source": one_of("compiled", "disk", "memory"), "seconds": SECONDS})

DOCUMENTS: dict[str, tuple[Schema, ...]] = {
    **{f"bench {name}": (_SUITE,) for name in (*SUITES, "all")},
    **{f"bench {name}": (_REPORT,) for name in REPORTS},
    **{f"bench {name}": _OF_OWN[name] for name in OWN},
    "tune": (
        record(
            {
                "ok": OK,
                "arch": ARCH,
                "device": nullable(TEXT),
                "wall_s": SECONDS,
                "exported": nullable(FILE),
                "problems": items(
                    record(
                        {
                            "state": TEXT,
                            "record": nullable(_RECORD),
                            "problem": TEXT,
                            "by_model": TEXT,
                            "ahead": nullable(NUMBER),
                            "missing": named(REASON, "kernel"),
                            "seconds": SECONDS,
                            "error": REASON,
                        }
                    )
                ),
            }
        ),
        record(
            {
                "device": TEXT,
                "arch": ARCH,
                "taken": COUNT,
                "skipped": named(REASON, "problem"),
                "differences": named(record({"here": ANY, "there": ANY})),
            }
        ),
        record(
            {
                "ok": OK,
                "arch": ARCH,
                "dry_run": FLAG,
                "estimate_s": SECONDS,
                "budget_s": SECONDS,
                "wall_s": SECONDS,
                "problems": items(
                    record(
                        _SPACE,
                        known=items(_TRIAL),
                        planned=items(_PLANNED),
                        best=nullable(NAME),
                        kernels=items(_TRIAL),
                    )
                ),
            }
        ),
    ),
    "demo": (
        record(
            {
                "arch": ARCH,
                "device": TEXT,
                "sizes": named(COUNT, "size"),
                "steps": items(
                    record(
                        {
                            "name": TEXT,
                            "shape": items(COUNT),
                            "first": _CALL,
                            "fresh": _CALL,
                            "warm": _CALL,
                            "error": NUMBER,
                        }
                    )
                ),
                "layer_error": NUMBER,
                "kernels": items(record({"name": NAME, "key": KEY, "bytes": BYTES})),
                "cross_compiled": nullable(
                    record(
                        {
                            "name": NAME,
                            "source": TEXT,
                            "seconds": SECONDS,
                            "threads": COUNT,
                            "registers": COUNT,
                            "stack_bytes": BYTES,
                            "shared_bytes": BYTES,
                            "bytes": BYTES,
                        }
                    )
                ),
                "cross_error": REASON,
                "ok": OK,
            }
        ),
    ),
    "doctor": (
        record(
            {
                "ok": OK,
                "jitgen": TEXT,
                "findings": items(
                    record(
                        {
                            "section": TEXT,
                            "name": TEXT,
                            "value": TEXT,
                            "health": one_of("ok", "note", "warn", "fail"),
                            "advice": TEXT,
                        }
                    )
                ),
            }
        ),
    ),
    "serve": (record({"ok": OK, "config": FILE, "mistakes": items(TEXT)}),),
    "token": (record({"name": TEXT, "scopes": items(TEXT), "token": TEXT, "table": TEXT}),),
    "signer": (record({"keyid": TEXT, "socket": FILE}),),
    "schema": (record({"commands": items(TEXT), "json_schema": named(ANY)}),),
}
