# SPDX-License-Identifier: Apache-2.0
"""
The JSON Schema (draft 2020-12) of what ``--json`` prints, made from the classes that commands
print.

Every command has the documents that it may print, and an error document. A schema lists the fields
of this version of jitgen; a later version may add fields, so no schema forbids others. Tests check
every document of every command against its schema, and forbid other fields there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Annotated

from jitgen.bench import OWN, REPORTS, SUITES
from jitgen.cli.output import SCHEMA
from jitgen.support.codec import Schema, schema
from jitgen.support.frozen import frozen
from jitgen.support.vocabulary import said

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_OF_OWN = {
    "transformers": ("TransformersReport", "Listed"),
    "choice": ("ChoiceReport", "ChoiceListed"),
    "hopper-fp4": ("Fp4Report", "Listed"),
    "layer": ("LayerReport", "Suite", "Listed"),
    "plan": ("PlanReport",),
    "kernel": ("KernelReport",),
    "gradients": ("Suite",),
}
_BENCH = {
    **dict.fromkeys((*SUITES, "all"), ("Suite",)),
    **dict.fromkeys(REPORTS, ("Report",)),
    **{name: _OF_OWN[name] for name in OWN},
}

DOCUMENTS: dict[str, str] = {
    "configs": "configs:_Configs",
    "select": "select:_Selected",
    "show": "show:_Summary show:_SourceText show:_Partials show:_Ptx show:_Sass show:_Resources "
    "show:_KeyDocument",
    "inspect": "inspect:_Page",
    "diff": "diff:_Diff",
    "run": "run:_Ran",
    "verify": "verify:_Verified verify_rebuild:_Rebuilt",
    "prewarm": "prewarm:_Prewarmed prewarm:_BeyondBudget",
    "lock": "lock:_Locked lock:_Unlocked",
    "plan ls": "plan:_Plans",
    "plan show": "plan:_ShownPlan",
    "plan from-recording": "plan:_RecordedPlan",
    "plan from-config": "plan_model:_ModelPlan",
    "cache dir": "cache:_Roots",
    "cache ls": "cache:_Entries cache:_Failures",
    "cache stats": "cache:_Totals",
    "cache report": "cache_report:_Reported",
    "cache explain": "cache_explain:_Explained cache_explain:_ExplainedDamage",
    "cache quarantine": "cache_explain:_Quarantined",
    "cache verify": "cache_edit:_Verified cache_remote:_Judged",
    "cache prune": "cache_edit:_Pruned",
    "cache rm": "cache_edit:_Removed",
    "cache clear": "cache_edit:_Cleared",
    "cache adopt": "cache_edit:_Adopted",
    "cache pin": "cache_edit:_Keys",
    "cache unpin": "cache_edit:_Keys",
    "cache sign": "cache_remote:_Signed",
    "cache push": "cache_remote:_Pushed",
    "cache pull": "cache_remote:_Pulled",
    "bundle export": "bundle:_Exported bundle:_Incomplete",
    "bundle import": "bundle:_Imported",
    "bundle inspect": "bundle:_Inspected",
    "bundle verify": "bundle:_Verified",
    "trust key": "trust:_MadeKey",
    "trust init": "trust_document:_Written",
    "trust add": "trust_document:_Written",
    "trust rotate": "trust_document:_Written",
    "trust revoke": "trust_document:_Written",
    "trust unrevoke": "trust_document:_Written",
    "trust public": "trust:_MadeKey",
    "trust adopt": "trust:_Adopted",
    "trust push": "trust:_Pushed",
    "trust show": "trust:_Shown",
    **{
        f"bench {suite}": " ".join(f"bench_documents:_{name}" for name in names)
        for suite, names in _BENCH.items()
    },
    "tune": "tune:_Tuned tune_tables:_TakenOver tune_space:_Searched",
    "demo": "demo:_Demonstrated",
    "doctor": "doctor:_Diagnosis",
    "serve": "serve:_CheckedConfig",
    "token": "serve:_NewToken",
    "signer": "serve:_Signer",
    "schema": "schema:_Schemas",
}
"""The classes that each command may print: module of `jitgen.cli` and name."""


@frozen
class _Failure:
    type: str
    message: str


@frozen
class _Error:
    error: Annotated[_Failure, said("what failed")]


def schema_of(commands: Iterable[str]) -> Schema:
    """Return the schema of the output of commands, each named by its words: ``cache ls``."""
    names = list(commands)
    variants = [_begun(name, each) for name in names for each in _documents(name)]
    return {
        "$schema": DIALECT,
        "title": f"jitgen {names[0]} --json" if len(names) == 1 else "jitgen --json",
        "anyOf": [*variants, _begun("error", schema(_Error))],
    }


def _documents(command: str) -> Iterator[Schema]:
    for place in DOCUMENTS[command].split():
        module, _, name = place.partition(":")
        yield schema(getattr(importlib.import_module(f"jitgen.cli.{module}"), name))


def _begun(command: str, document: Schema) -> Schema:
    """Return the schema of a document, with the fields with which all documents begin."""
    begin = {"schema": {"const": SCHEMA}, "command": {"const": command}}
    return {
        **document,
        "properties": {**begin, **document["properties"]},
        "required": [*begin, *document["required"]],
    }
