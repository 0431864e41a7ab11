# SPDX-License-Identifier: Apache-2.0
"""What commands about kernels print: which there are, what is in one, whether it is right."""

from __future__ import annotations

from jitgen.cli.schemas.words import (
    ANY,
    ARCH,
    BYTES,
    CONFIG,
    COUNT,
    DERIVED,
    FILE,
    FLAG,
    ID,
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

_FINDING = record(
    {"kind": TEXT, "message": TEXT, "place": TEXT, "who": TEXT, "count": COUNT, "severity": TEXT}
)
_RUN = record(
    {
        "mode": TEXT,
        "seconds": SECONDS,
        "cpu_seconds": SECONDS,
        "findings": items(_FINDING),
        "counts": named(NUMBER, "what was executed"),
        "warp_instructions": named(NUMBER, "functions of the source"),
    }
)
_TRIAL = record(
    {
        "problem": TEXT,
        "sizes": named(ANY),
        "values": told(TEXT, "integers, random, or the name of a case"),
        "right": FLAG,
        "wrong": COUNT,
        "places": items(TEXT),
        "frobenius": NUMBER,
        "largest": NUMBER,
        "fault": nullable(_FINDING),
        "runs": items(_RUN),
    }
)
_COVERAGE = record(
    {
        "entry": TEXT,
        "instructions": told(items(COUNT), "executed, and all"),
        "purposes": told(named(items(COUNT)), "of each kind, executed and all"),
        "functions": named(record({"lines": items(COUNT), "never": items(COUNT)})),
        "blocks": items(items(COUNT)),
        "never_executed": items(record({"purpose": TEXT, "place": TEXT, "reason": TEXT})),
    }
)
_VERIFIED = {
    "right": FLAG,
    "gaps": items(_FINDING),
    "coverage": items(_COVERAGE),
    "trials": items(_TRIAL),
}
_STATE = one_of("right", "wrong", "failed")
CHECK = record(
    {
        "title": TEXT,
        "right": FLAG,
        "rows": items(
            record(
                {
                    "problem": TEXT,
                    "values": one_of("integers", "random"),
                    "right": FLAG,
                    "wrong": COUNT,
                    "places": items(TEXT),
                    "frobenius": NUMBER,
                    "largest": NUMBER,
                }
            )
        ),
        "error": REASON,
    }
)
TIMES = record(
    {
        "problem": TEXT,
        "bytes": BYTES,
        "flop": COUNT,
        "kernels": items(record({"title": TEXT, "time_us": US, "spread": NUMBER, "detail": TEXT})),
    }
)
_ENTRY = record(
    {
        "directory": FILE,
        "created": WHEN,
        "compile_s": SECONDS,
        "link_s": SECONDS,
        "files": named(BYTES, "file"),
        "host_isa": items(TEXT),
        "jitgen": TEXT,
        "edited": FLAG,
    }
)
_INVARIANT = told(FLAG, "whether a row's bits depend on the row alone, and on no batch")
_LINED = items(nullable(WHOLE))
_SIDE = record({"title": TEXT, **ID})
_DIFFERS = items(record({"field": TEXT, "a": ANY, "b": ANY}))
_TEXTS = {"same": FLAG, "added": COUNT, "removed": COUNT, "diff": TEXT}
_CODE = nullable(
    record(
        {
            **_TEXTS,
            "counts": items(
                record({"instruction": TEXT, "a": COUNT, "b": COUNT}, field=TEXT),
            ),
        }
    )
)

DOCUMENTS: dict[str, tuple[Schema, ...]] = {
    "configs": (
        record(
            {
                "arch": ARCH,
                "configs": items(
                    record(
                        {
                            "name": NAME,
                            "ok": OK,
                            "code": told(TEXT, "the code of the rule that refuses it"),
                            "reason": REASON,
                            "invariant": _INVARIANT,
                            "proposal": nullable(NAME),
                            "config": CONFIG,
                            "derived": nullable(DERIVED),
                        }
                    )
                ),
            }
        ),
    ),
    "select": (
        record(
            {
                "arch": ARCH,
                "name": NAME,
                "config": CONFIG,
                "source": one_of("tuned", "shipped", "model", "static", "passes"),
                "why": TEXT,
                "candidates": items(
                    record(
                        {
                            "name": NAME,
                            "cost_us": US,
                            "time_us": nullable(US),
                            "padding_ratio": NUMBER,
                            "waves": COUNT,
                            "traffic_bytes": BYTES,
                            "limiter": TEXT,
                        }
                    )
                ),
                "excluded": named(REASON, "kernel"),
            },
            unpacked=record(
                {
                    "is_chosen": FLAG,
                    "why": TEXT,
                    "kernels": items(NAME),
                    "workspace_bytes": BYTES,
                }
            ),
        ),
    ),
    "show": (
        record(
            {
                **ID,
                "config": CONFIG,
                "derived": DERIVED,
                "invariant": _INVARIANT,
                "entry": nullable(_ENTRY),
                "override": nullable(FILE),
            },
            file=FILE,
        ),
        record({**ID, "source": TEXT}, file=FILE),
        record({**ID, "ptx": TEXT}, lines=_LINED, file=FILE),
        record({**ID, "sass": TEXT}, lines=_LINED, file=FILE),
        record({**ID, "resources": named(ANY)}, file=FILE),
        record({**ID, "key_document": named(ANY)}, file=FILE),
    ),
    "inspect": (
        record(
            {
                "file": FILE,
                "bytes": BYTES,
                "kernels": items(
                    record(
                        {
                            **ID,
                            "lines": named(COUNT, "language"),
                            "ctas_per_sm": nullable(WHOLE),
                            "measured": COUNT,
                            "right": nullable(FLAG),
                            "notes": items(TEXT),
                        }
                    )
                ),
            }
        ),
    ),
    "diff": (
        record(
            {
                "same": FLAG,
                "a": _SIDE,
                "b": _SIDE,
                "config": _DIFFERS,
                "derived": _DIFFERS,
                "key_document": nullable(_DIFFERS),
                "source": record(_TEXTS),
                "ptx": _CODE,
                "sass": _CODE,
                "resources": nullable(_DIFFERS),
                "missing": named(REASON, "part"),
            }
        ),
    ),
    "run": (
        record(
            {
                "ok": OK,
                **ID,
                "file": FILE,
                "steps": items(
                    record(
                        {
                            "name": one_of("compile", "emulate", "check", "time"),
                            "state": one_of("ok", "right", "wrong", "failed", "skipped"),
                            "detail": TEXT,
                        }
                    )
                ),
                "emulated": items(record({"error": REASON}, name=NAME, arch=ARCH, **_VERIFIED)),
                "checks": items(CHECK),
                "times": nullable(TIMES),
            }
        ),
    ),
    "verify": (
        record(
            {
                "ok": OK,
                "modes": items(TEXT),
                "wall_s": SECONDS,
                "kernels": items(
                    record({"name": NAME, "state": _STATE, "error": REASON}, arch=ARCH, **_VERIFIED)
                ),
            }
        ),
        record(
            {
                "ok": OK,
                "wall_s": SECONDS,
                "kernels": items(
                    record(
                        {
                            "name": NAME,
                            "key": KEY,
                            "state": one_of("same", "other", "failed"),
                            "seconds": SECONDS,
                            "differences": items(TEXT),
                            "error": REASON,
                        }
                    )
                ),
            }
        ),
    ),
    "prewarm": (
        record(
            {
                "dry_run": FLAG,
                "ok": OK,
                "wall_s": SECONDS,
                "jobs": COUNT,
                "devices": named(items(TEXT), "arch"),
                "counts": named(COUNT, "state"),
                "kernels": items(
                    record(
                        {
                            "name": NAME,
                            "key": KEY,
                            "state": one_of(
                                "cached", "fetched", "compiled", "failed", "would_compile"
                            ),
                            "seconds": SECONDS,
                            "bytes": BYTES,
                            "error": REASON,
                        }
                    )
                ),
            }
        ),
        record({"ok": OK, "budget": COUNT, "wanted": COUNT, "beyond": items(NAME)}),
    ),
    "plan ls": (
        record({"plans": items(record({"name": TEXT, "description": TEXT, "problems": COUNT}))}),
    ),
    "plan show": (
        record(
            {
                "plan": TEXT,
                "description": TEXT,
                "arch": ARCH,
                "devices": items(TEXT),
                "problems": items(
                    record(
                        {
                            "op": TEXT,
                            "problem": PROBLEM,
                            "calls": NUMBER,
                            "kernel": NAME,
                            "source": TEXT,
                            "devices": items(TEXT),
                        }
                    )
                ),
            }
        ),
    ),
    "plan from-recording": (
        record(
            {
                "files": items(FILE),
                "calls": NUMBER,
                "kept": NUMBER,
                "kernels": named(NUMBER, "kernel"),
                "others": COUNT,
                "problems": COUNT,
                "plan": nullable(TEXT),
                "file": nullable(FILE),
            }
        ),
    ),
}
