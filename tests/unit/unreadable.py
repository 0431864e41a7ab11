# SPDX-License-Identifier: Apache-2.0
"""The places that pass over an error of the disk, and why this is safe."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_CAUGHT = {
    *("OSError", "CacheError", "Damaged", "SigningError", "BadDocument", "Exception"),
    *("JitgenError", "PermissionError", "ValueError", "UnsafeCacheRoot", "_TROUBLE"),
    "ExceptionGroup",
}

_MISS = "a miss, or a second try: the kernel is compiled or fetched"
_AGAIN = "costs time alone: it is found out, measured or counted again"
_WORD = "word for others that cannot be left; what it says is told here, or said again"
_ANSWER = "the error is what is answered, told or shown"
_CLEAN = "cleaning up, or a lock let go: what stays is removed another time"
_SHOWN = "for people: lists and totals are of what can be read, and say so"
_REFUSED = "nothing is accepted, loaded or signed for it"
_ENDS = "a process or connection that has ended already"
_TRIED = "another way is tried, by the same rules"

PASSED_OVER = {
    "bundle/export.py:_replace": _CLEAN,
    "cache/builders.py:Builders.count": _SHOWN,
    "cache/builders.py:Builders.digest": _AGAIN,
    "cache/builders.py:Builders.forget": _CLEAN,
    "cache/builders.py:Builders.remember": _AGAIN,
    "cache/builders.py:_record": "rot must not end publishing; what the disk does not give, does",
    "cache/builders.py:_write_first": "no links there: the last one wins",
    "cache/entry.py:disk_bytes": _SHOWN,
    "cache/entry.py:read_entry": "the time of last use",
    "cache/entry.py:write_entry": "a folder that cannot be synced: after a power failure, a miss",
    "cache/failures.py:parse_failure": "a failed compile is tried again",
    "cache/folder.py:Folder.discard": _CLEAN,
    "cache/folder.py:Folder.lock": "locks only avoid duplicate work",
    "cache/folder.py:Folder.read_if_there": "returns the reason; see who asks for `unread`",
    "cache/folder.py:Folder.replace_durably": "folders above, that may not be ours to sync",
    "cache/folder.py:Folder.service": _TRIED,
    "cache/folder.py:Folder.write": _CLEAN,
    "cache/index.py:Index._drop_hint": _CLEAN,
    "cache/database.py:Database.move_aside": "the index holds hits and failures, nothing to trust",
    "cache/database.py:Database._open": "likewise",
    "cache/database.py:Database.run": "likewise",
    "cache/index.py:Index.failures": "a failed compile is tried again",
    "cache/database.py:_close": _CLEAN,
    "cache/index.py:_exists": "a failed compile is tried again",
    "cache/traffic.py:_days": "counts for people, started anew",
    "cache/inventory.py:_names": _SHOWN,
    "cache/inventory.py:_row": _SHOWN,
    "cache/inventory.py:_row_of": _SHOWN,
    "cache/inventory.py:each": _SHOWN,
    "cache/inventory.py:entries": _SHOWN,
    "cache/inventory.py:entry_info": _SHOWN,
    "cache/inventory.py:keys": _SHOWN,
    "cache/inventory.py:keys_in": _SHOWN,
    "cache/inventory.py:line_in": _SHOWN,
    "cache/inventory.py:metas": _SHOWN,
    "cache/inventory.py:verification": _ANSWER,
    "cache/inventory.py:verify": _ANSWER,
    "cache/index.py:Journal.append": "hits and last uses",
    "cache/index.py:Journal.is_empty": "hits and last uses",
    "cache/index.py:Journal.take": "hits and last uses",
    "cache/index.py:_records": "hits and last uses",
    "cache/index.py:_taken": "hits and last uses",
    "cache/absence.py:_set_aside": _SHOWN,
    "cache/absence.py:absence_of": _ANSWER,
    "cache/layers.py:Layers._hides_damage": "a damaged entry: every process finds it again",
    "cache/layers.py:Layers._known_hidden": "nothing of that key is loaded from roots only read",
    "cache/layers.py:Layers._opened": "a root that is not safe is left out",
    "cache/layers.py:Layers.damages": _SHOWN,
    "cache/layers.py:Layers.each": "what may be hidden is not shown",
    "cache/layers.py:Layers.hide": "more is hidden than was asked for, never less",
    "cache/layers.py:Layers.metas": _SHOWN,
    "cache/layers.py:Layers.read": _MISS,
    "cache/layers.py:_mark": "what is loaded is looked up again, by the record that was read",
    "cache/serving.py:key_lock": "locks only avoid duplicate work",
    "cache/prune.py:Removing.__enter__": "an entry that is removed is compiled again",
    "cache/prune.py:Removing._open_drafts": _TRIED,
    "cache/prune.py:Removing.is_removed": "it stays",
    "cache/prune.py:Removing.remove": "it stays",
    "cache/prune.py:_spared": "nothing is pruned",
    "cache/prune.py:grow_ledger": _AGAIN,
    "cache/prune.py:sweep_leftovers": _CLEAN,
    "cache/prune.py:sweep_rest": _CLEAN,
    "cache/prune.py:write_ledger": _AGAIN,
    "cache/publishing.py:_remove_in_place": _CLEAN,
    "cache/publishing.py:is_good": "a good one is put in its place",
    "cache/publishing.py:is_held": "a draft that is swept is made again",
    "cache/publishing.py:remove": _TRIED,
    "cache/publishing.py:set_aside": _TRIED,
    "cache/publishing.py:sweep": _CLEAN,
    "cache/quarantine.py:_examined": _ANSWER,
    "cache/quarantine.py:damage_in": _SHOWN,
    "cache/quarantine.py:damage_in_place": _ANSWER,
    "cache/quarantine.py:empty": _CLEAN,
    "cache/quarantine.py:quarantined": _SHOWN,
    "cache/remembered.py:Remembered._unrelated": _ANSWER,
    "cache/remembered.py:Remembered.adopt": "asked for: what is lost is replaced",
    "cache/remembered.py:Remembered.keep": "told; the process goes by it and writes it later",
    "cache/root.py:Root.is_open": "taken for open to others",
    "cache/root.py:_tag": "a word for backup programs",
    "cache/root.py:filesystem_type": "only whether there is an index",
    "cache/rows.py:load_rows": "hits and sizes",
    "cache/scratch.py:_new_folder": _TRIED,
    "cache/scratch.py:_places": _TRIED,
    "cache/scratch.py:sweep_scratch": _CLEAN,
    "cache/serving.py:Serving.__init__": _MISS,
    "cache/serving.py:Serving._account": "sizes and pruning",
    "cache/serving.py:Serving._read": _MISS,
    "cache/serving.py:Serving._set_aside": "told: every process compiles it again",
    "cache/serving.py:Serving.lock": "locks only avoid duplicate work",
    "cache/serving.py:Serving.publish": "told; the kernel serves this process",
    "cache/serving.py:Serving.quarantine": "it is found damaged again",
    "cache/serving.py:Serving.read_own": _MISS,
    "cache/stamp.py:stamp_of": "what is kept in memory is read again",
    "cache/store.py:Store.clear": "it stays",
    "cache/store.py:Store.is_pinned": _SHOWN,
    "cache/store.py:Store.meta": _SHOWN,
    "cache/store.py:Store.unpin": "it stays pinned",
    "cache/trusted.py:Trusted._when": "places are asked again for a later trust document",
    "cache/trusted.py:Trusted.mark_fresh": "places are asked again for a later trust document",
    "cache/trusted.py:Trusted.refusal": _REFUSED,
    "cache/tuned.py:Tuned.clear": "measurements, which choose among legal kernels",
    "cache/tuned.py:Tuned.count": _SHOWN,
    "cache/tuned.py:Tuned.is_empty": "measurements, which choose among legal kernels",
    "cache/tuned.py:Tuned.names": "measurements, which choose among legal kernels",
    "cache/tuned.py:Tuned.read": "measurements, which choose among legal kernels; told",
    "cache/tuned.py:Tuned.remove": "measurements, which choose among legal kernels",
    "cli/cache_remote.py:push": _ANSWER,
    "cli/trust_document.py:write_document": _CLEAN,
    "fleet/coordination.py:CoordinationStore.alive.beat": "the working thread finds out, too",
    "fleet/cluster.py:_received": _ANSWER,
    "fleet/rank.py:Rank._compile": _ANSWER,
    "fleet/rank.py:Rank._take": _ANSWER,
    "remote/breaker.py:Breaker._alone": "two ask a place that one was to ask",
    "remote/breaker.py:Breaker._trip": "the process remembers it itself",
    "remote/breaker.py:Breaker.reset": "the place is asked later than it could be",
    "remote/breaker.py:Breaker.state": "the process goes by what it knows itself",
    "remote/breaker.py:_decoded": "the process goes by what it knows itself",
    "remote/request_policy.py:RequestPolicy._trust_digest": _REFUSED,
    "remote/http.py:Session.cancel": _ENDS,
    "remote/http.py:_no_descriptor": _ANSWER,
    "remote/refresh.py:refresh": "the document in use stays, or every kernel is refused",
    "remote/service.py:_document": "no answer that can be used",
    "runtime/background.py:Background._again_s": "there may be no memory left to say it",
    "runtime/background.py:Background._work": _ANSWER,
    "runtime/coverage.py:keep": "told; the kernels are there nevertheless",
    "runtime/tiers.py:_publish": "told; the kernel serves this process",
    "runtime/native.py:_sealed": _TRIED,
    "runtime/native.py:load": _TRIED,
    "plans/prewarm.py:_compile": _ANSWER,
    "plans/prewarm.py:_unwritable": _ANSWER,
    "plans/recorder.py:Recorder.write": "told; the calls are counted nevertheless",
    "plans/rebuild.py:_library": _ANSWER,
    "plans/rebuild.py:rebuilt": _ANSWER,
    "runtime/settings_check.py:_refuse_folder": "told when the recording is written",
    "runtime/syntax.py:_look": _ANSWER,
    "plans/task.py:build_task": _ANSWER,
    "server/accept.py:Acceptor._accept": "a client that has gone, or room is made for the next one",
    "server/accept.py:Acceptor._joined": "it is no TCP, or has gone",
    "server/built.py:Built.add": "told; what is not noted as built here is not vouched for",
    "server/bundle_handlers.py:_has_digest": "it is not handed out",
    "server/check.py:_certificate": _ANSWER,
    "server/check.py:_gate": "the check of the same toolchain tells it",
    "server/check.py:_described": _ANSWER,
    "server/check.py:_ends_soon": "told as a mistake by `_key` and `_trust`",
    "server/check.py:_key": _ANSWER,
    "server/check.py:_lock": _ANSWER,
    "server/check.py:_store": _ANSWER,
    "server/check.py:_trust": _ANSWER,
    "server/check_places.py:_shared": _ANSWER,
    "server/check_places.py:address": _ANSWER,
    "server/check_places.py:unresolved": _ANSWER,
    "server/check_places.py:unwritable": _ANSWER,
    "server/confine.py:_separate": _TRIED,
    "server/confine.py:main": "the process ends",
    "server/confine.py:probe": _ANSWER,
    "server/endpoint.py:Endpoint.__call__": _ANSWER,
    "server/endpoint.py:_password": "no password",
    "server/entry_handlers.py:_rebuilt": "kept unsigned, with the reason",
    "server/supervisor.py:Supervisor._do": _ANSWER,
    "server/validator.py:_reason": _REFUSED,
    "server/jobs.py:Queue._run": _ANSWER,
    "server/leases.py:Leases._renew": "two services compile what one was to",
    "server/leases.py:Leases.found": _MISS,
    "server/leases.py:Leases.held": "two services compile what one was to",
    "server/leases.py:Leases.share": "others compile it themselves",
    "server/leases.py:_is_over": "two services compile what one was to",
    "server/log.py:Log.event": "the log is not read",
    "server/connection_slots.py:address_of": "an address of another kind, which counts by its text",
    "server/pools.py:Pool._keep": "told; the toolchain is started again",
    "server/pools.py:Pool._run": _ENDS,
    "server/prewarms.py:Prewarms._run": _ANSWER,
    "server/serve.py:App._live": _ANSWER,
    "server/service.py:Service._keep": "the time of last use",
    "server/service.py:Service._watch": "told; it looks again",
    "server/service.py:_trouble": _ANSWER,
    "server/settings.py:is_loopback": "taken for an address that others reach",
    "server/settings.py:parse_settings": _ANSWER,
    "server/signer_client.py:SignerClient.renew": "told; nothing is signed",
    "server/signer_client.py:SignerClient.revive": "told in `trouble`; nothing is signed",
    "server/signer.py:answer": _REFUSED,
    "server/signer.py:main": _REFUSED,
    "server/signer.py:serve": _ENDS,
    "server/compile_task.py:_Digests.digest": _AGAIN,
    "server/compile_task.py:_Digests.remember": _AGAIN,
    "server/compile_task.py:compile_task": _ANSWER,
    "server/ui.py:_signatures": _SHOWN,
    "server/vouching.py:Vouching._is_disowned": _REFUSED,
    "server/vouching.py:Vouching._signed": "told; it is signed in memory, and again another time",
    "server/vouching.py:_is_signed": _REFUSED,
    "signing/dsse.py:renewed": "what is no signature counts for none; a new one takes its place",
    "signing/keys.py:PublicKey.verifies": _REFUSED,
    "signing/keys.py:_is_another_file": _REFUSED,
    "signing/policy.py:_statement": _REFUSED,
    "signing/policy.py:judge": _REFUSED,
    "signing/times.py:moment_of": _REFUSED,
    "ownership/__init__.py:_owner_of_everything": "then only this user and the superuser are",
}
"""Module and function of each place, and what follows there from an error of the disk."""


def passes_over(tree: ast.AST, name: str = "") -> Iterator[str]:
    """Yield the qualified names of the functions that catch an error of the disk and raise none."""
    for child in ast.iter_child_nodes(tree):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}".lstrip(".")
        if _swallows(child):
            yield inner
        yield from passes_over(child, inner)


def _swallows(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        is_raised = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        return not is_raised and (node.type is None or bool(_names(node.type) & _CAUGHT))
    calls = [item.context_expr for item in getattr(node, "items", ())]
    return any(
        isinstance(call, ast.Call)
        and _names(call.func) == {"suppress"}
        and any(_names(argument) & _CAUGHT for argument in call.args)
        for call in calls
    )


def _names(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)} | {
        x.attr for x in ast.walk(node) if isinstance(x, ast.Attribute)
    }
