# SPDX-License-Identifier: Apache-2.0
"""What commands print that tune, that report on the machine, or that start a service."""

from __future__ import annotations

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
)

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
    "serve": (
        record({"ok": OK, "config": FILE, "mistakes": items(TEXT), "warnings": items(TEXT)}),
    ),
    "token": (record({"name": TEXT, "scopes": items(TEXT), "token": TEXT, "table": TEXT}),),
    "signer": (record({"keyid": TEXT, "socket": FILE}),),
    "schema": (record({"commands": items(TEXT), "json_schema": named(ANY)}),),
}
