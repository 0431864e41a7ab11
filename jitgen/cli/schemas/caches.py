# SPDX-License-Identifier: Apache-2.0
"""What commands about the cache print, and those that carry kernels elsewhere and sign them."""

from __future__ import annotations

from jitgen.cli.schemas.words import (
    ANY,
    BYTES,
    COUNT,
    FILE,
    FLAG,
    ID,
    KEY,
    NAME,
    OK,
    REASON,
    SECONDS,
    TEXT,
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

_URL = told(TEXT, "where something is: s3://bucket/prefix, say")
_KEYS = items(KEY)
_KEYID = told(TEXT, "the SHA-256 of a public key")
_FAILED = named(REASON, "key")
_PLACE = record({"tier": one_of("remote", "service"), "url": _URL, "state": TEXT})
_ASKED = record(
    {
        "tier": one_of("remote", "service"),
        "url": _URL,
        "has_it": FLAG,
        "is_there": FLAG,
        "reason": REASON,
        "seconds": SECONDS,
    }
)
_DAMAGE = record(
    {
        "key": KEY,
        "name": NAME,
        "reason": REASON,
        "path": FILE,
        "set_aside": nullable(WHEN),
        "disk_bytes": BYTES,
    }
)
_NEAREST = record(
    {
        "key": KEY,
        "name": NAME,
        "differences": items(record({"field": TEXT, "wanted": ANY, "found": ANY})),
        "meanings": items(TEXT),
    }
)
_STATE = one_of("hit", "miss", "failed", "refused")
_PACKED = record({**ID, "bytes": BYTES, "signed_by": items(_KEYID)})
_BUNDLE = {
    "digest": TEXT,
    "layer_bytes": BYTES,
    "annotations": named(TEXT),
    "kernels": items(_PACKED),
}
_TRUSTED = record(
    {"file": FILE, "version": WHOLE, "keys": items(_KEYID), "ends": named(WHEN, "keyid")}
)

DOCUMENTS: dict[str, tuple[Schema, ...]] = {
    "cache dir": (
        record(
            {
                "root": FILE,
                "origin": TEXT,
                "exists": FLAG,
                "bases": items(FILE),
                "elsewhere": items(_URL),
            }
        ),
    ),
    "cache ls": (
        record(
            {
                "entries": items(
                    record(
                        {
                            **ID,
                            "size_bytes": BYTES,
                            "disk_bytes": BYTES,
                            "hits": COUNT,
                            "last_use": WHEN,
                            "is_pinned": FLAG,
                            "base": told(TEXT, "the base it lies in; empty: the own root"),
                        }
                    )
                )
            }
        ),
        record(
            {
                "failures": items(
                    record({"key": KEY, "name": NAME, "reason": REASON, "expires": WHEN})
                )
            }
        ),
    ),
    "cache stats": (
        record(
            {
                "root": FILE,
                "bases": items(FILE),
                "mode": one_of("rw", "ro", "off"),
                "entries": COUNT,
                "size_bytes": BYTES,
                "disk_bytes": BYTES,
                "limit_bytes": BYTES,
                "hits": COUNT,
                "failures": COUNT,
                "pinned": COUNT,
                "quarantined": COUNT,
                "tuned": COUNT,
                "by_arch": named(COUNT, "target; empty: damaged"),
                "elsewhere": items(_PLACE),
            }
        ),
    ),
    "cache report": (
        record(
            {
                "file": FILE,
                "bytes": BYTES,
                "entries": COUNT,
                "states": named(COUNT, "state"),
                "reasons": named(COUNT, "reason"),
                "failures": COUNT,
                "quarantined": COUNT,
            }
        ),
    ),
    "cache explain": (
        record(
            {
                **ID,
                "state": _STATE,
                "reason": TEXT,
                "key_document": named(ANY),
                "damaged": items(_DAMAGE),
                "elsewhere": items(_ASKED),
                "nearest": items(_NEAREST),
            }
        ),
        record(
            {
                "key": KEY,
                "state": _STATE,
                "reason": REASON,
                "damaged": items(_DAMAGE),
                "nearest": items(_NEAREST),
            }
        ),
    ),
    "cache quarantine": (record({"damaged": items(_DAMAGE), "removed": COUNT, "left": COUNT}),),
    "cache verify": (
        record(
            {
                "checked": COUNT,
                "damaged": items(
                    record(
                        {
                            "key": KEY,
                            "name": NAME,
                            "is_good": FLAG,
                            "reason": REASON,
                            "fate": one_of("", "quarantined", "removed", "hidden"),
                            "base": TEXT,
                        }
                    )
                ),
                "dry_run": FLAG,
            }
        ),
        record(
            {"trust": WHOLE, "signed": named(items(_KEYID), "key"), "refused": named(REASON, "key")}
        ),
    ),
    "cache prune": (
        record(
            {
                "dry_run": FLAG,
                "removed": items(record({"key": KEY, "name": NAME})),
                "freed_bytes": BYTES,
                "kept_bytes": BYTES,
                "swept": items(TEXT),
            }
        ),
    ),
    "cache rm": (
        record(
            {
                "dry_run": FLAG,
                "removed": items(
                    record({"key": KEY, "name": NAME, "failure": FLAG}, hidden_in=FILE)
                ),
                "missing": _KEYS,
                "stuck": _KEYS,
            }
        ),
    ),
    "cache clear": (
        record(
            {
                "dry_run": FLAG,
                "removed": COUNT,
                "left": COUNT,
                "freed_bytes": BYTES,
                "removed_tuned": COUNT,
            }
        ),
    ),
    "cache adopt": (record({"removed": COUNT}),),
    "cache pin": (record({"keys": _KEYS}),),
    "cache unpin": (record({"keys": _KEYS}),),
    "cache sign": (record({"signed": _KEYS, "there": _KEYS, "stale": _KEYS}),),
    "cache push": (
        record({"to": _URL, "pushed": _KEYS, "there": _KEYS, "unsigned": _KEYS, "failed": _FAILED}),
    ),
    "cache pull": (record({"from": _URL, "pulled": _KEYS, "here": _KEYS, "failed": _FAILED}),),
    "bundle export": (
        record({"ok": OK, "wall_s": SECONDS, "bytes": BYTES, **_BUNDLE}),
        record({"ok": OK, "missing": items(NAME)}),
    ),
    "bundle import": (
        record(
            {
                "ok": OK,
                "wall_s": SECONDS,
                "digest": TEXT,
                "kernels": items(
                    record({"name": NAME, "key": KEY, "state": TEXT, "reason": REASON})
                ),
            }
        ),
    ),
    "bundle inspect": (record({"ok": OK, **_BUNDLE}),),
    "bundle verify": (
        record(
            {
                "ok": OK,
                "digest": TEXT,
                "refused": _FAILED,
                "missing": items(NAME),
                "kernels": COUNT,
            }
        ),
    ),
    "trust key": (record({"keyid": _KEYID, "public": TEXT, "file": FILE}),),
    "trust init": (_TRUSTED,),
    "trust add": (_TRUSTED,),
    "trust rotate": (_TRUSTED,),
    "trust revoke": (_TRUSTED,),
    "trust adopt": (record({"file": FILE, "version": WHOLE, "forgotten": nullable(WHOLE)}),),
    "trust push": (record({"to": _URL, "version": WHOLE}),),
    "trust show": (
        record(
            {
                "type": TEXT,
                "version": WHOLE,
                "issued": WHEN,
                "expires": WHEN,
                "roots": items(TEXT),
                "keys": items(
                    record(
                        {
                            "keyid": _KEYID,
                            "public": TEXT,
                            "not_before": WHEN,
                            "not_after": WHEN,
                            "comment": TEXT,
                        }
                    )
                ),
                "revoked_keys": named(TEXT, "keyid: why"),
                "revoked": named(TEXT, "digest: why"),
                "min_signed_at": nullable(WHEN),
                "digest": TEXT,
            }
        ),
    ),
}
