# SPDX-License-Identifier: Apache-2.0
"""
Every place that may remember a failure, and which of the three kinds of `jitgen.support.failing` it
remembers: a place that is not in `PLACES` fails here, and so does one that is gone.

Passing trouble used to be remembered like the compiler's refusal in a dozen places. Where a failure
may be remembered is found in the source: what an exception handler stores or hands to something
that remembers, whatever the name of which says that it holds failures, what is cached although it
swallows errors, and who calls what remembers for others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import jitgen

ROOT = Path(jitgen.__file__).parent
APART = ("emulator/", "bench/", "cli/", "inspect/", "verify/")
"""What measures, prints or proves: it ends with its command, and nothing that serves asks it."""

CERTAIN, PASSING, ELSEWHERE, NONE = "certain", "passing", "said elsewhere", "no memory"

PLACES = {
    # What the compiler refuses.
    "runtime/tiers.py build": (CERTAIN, "JITGEN_FAILURE_TTL, for all who share the root"),
    "cache/index.py NullIndex._failures": (CERTAIN, "JITGEN_FAILURE_TTL, where there is no index"),
    "cache/index.py Index.remember_failure": (CERTAIN, "JITGEN_FAILURE_TTL"),
    "runtime/background.py Background._refused": (CERTAIN, "as long as the index says so"),
    "server/failures.py Failures.add": (CERTAIN, "limits.failure_s, for the fleet"),
    "server/work.py Worker.__call__": (CERTAIN, "E_COMPILE and E_GATE; others are answered only"),
    "fleet/rank.py Rank._fail": (CERTAIN, "the job; others are left to another rank, twice"),
    # What is wrong with the bytes of an entry.
    "cache/serving.py Serving._read": (CERTAIN, "set aside for a day: wrong bytes, never EIO"),
    "cache/serving.py Serving._set_aside": (CERTAIN, "the same"),
    "cache/serving.py Serving.quarantine": (CERTAIN, "the same: no library, though digests agree"),
    "cache/serving.py Serving.lock": (CERTAIN, "what stands in the place of a lock file"),
    "cache/layers.py Layers.read": (CERTAIN, "hidden as long as the base has this record"),
    "cache/layers.py Layers._known_hidden": (CERTAIN, "a damaged list is written anew, of all"),
    "cache/layers.py Layers.hide_record": (CERTAIN, "the same"),
    "cache/layers.py Layers._hides_damage": (CERTAIN, "the same"),
    "cache/absence.py absence_of": (NONE, "a word in a message"),
    "cache/store.py Store._hide": (NONE, "`jitgen cache rm` of a base: a person asks for it"),
    "cache/publishing.py publish_entry": (CERTAIN, "gives way to a good entry of the same key"),
    "cache/database.py Database.move_aside": (CERTAIN, "a database that is none"),
    "server/built.py Built.add": (CERTAIN, "the same; one that is busy is left alone"),
    "runtime/loader.py KernelLoader._opened": (CERTAIN, "no library: set aside; else it is raised"),
    # What this process or machine is short of.
    "support/failing.py Backoff._tries": (PASSING, "seconds that double, up to a minute"),
    "support/failing.py Backoff._until": (PASSING, "the same; an hour for unexpected errors"),
    "runtime/loader.py KernelLoader._backoff": (PASSING, "Backoff"),
    "runtime/loader.py KernelLoader._backed_off": (PASSING, "ResourceError alone goes to Backoff"),
    "runtime/background.py Background._backoff": (PASSING, "Backoff"),
    "runtime/background.py Background._again_s": (PASSING, "all but a refusal goes to Backoff"),
    "runtime/background.py Background._ensure_thread": (PASSING, "no thread: Backoff"),
    "cache/database.py Database._rests_until": (PASSING, "30 s without the index"),
    "cache/database.py Database.reason": (NONE, "a word for people"),
    "events.py EventBus._misses": (PASSING, "three events in a row"),
    "events.py EventBus._deliver": (PASSING, "a listener that fails otherwise is dropped"),
    "runtime/session.py Session._misses": (PASSING, "counted: the launch is not remembered"),
    "selection/choice.py Chooser.doubts": (PASSING, "counted: the choice is not remembered"),
    "cache/tuned.py _troubles": (PASSING, "counted: what decides that"),
    "fleet/rank.py Rank._rests": (PASSING, "2 s, in which other ranks may try"),
    "server/leases.py Leases._rests_until": (PASSING, "10 s without the shared store"),
    "server/leases.py Leases._ask.asked": (PASSING, "the same"),
    "server/pools.py Pool._keep": (PASSING, "half a second, doubling up to 30"),
    "server/pools.py Pool.trouble": (PASSING, "until a foreman is ready"),
    "server/service.py Service._proven": (PASSING, "whether the store can be written: seconds"),
    # What another place says.
    "remote/request_policy.py RequestPolicy.ask": (ELSEWHERE, "see RequestPolicy._remember"),
    "remote/request_policy.py RequestPolicy._remember": (
        ELSEWHERE,
        "absent 30 s; damaged, denied 60 s; refused an hour; declined: as said; own trouble: not",
    ),
    "remote/negative.py negatives": (ELSEWHERE, "the memory of these"),
    "remote/breaker.py Breaker.attempt": (
        ELSEWHERE,
        "30 s to 10 minutes, for the host",
    ),
    "fleet/rank.py Rank._dead": (ELSEWHERE, "a rank that said nothing for its patience"),
    "fleet/rank.py Rank._take": (NONE, "a row of this rank's report"),
    # Tuning.
    "autotune/tuner.py _Run._excluded": (CERTAIN, "until --again: wrong, hung, crashed"),
    "autotune/tuner.py _Run._exclude": (CERTAIN, "the same"),
    "autotune/tuner.py _Run.measure": (CERTAIN, "the same: a kernel that cannot be ended"),
    "autotune/tuner.py _Run._refused": (CERTAIN, "this run: the index remembers it"),
    "autotune/tuner.py _Run._missing": (PASSING, "this run"),
    "autotune/tuner.py _Run._record": (CERTAIN, "the same"),
    "autotune/space_run.py _Run._measured": (CERTAIN, "the same"),
    "autotune/bench.py Bench._failure": (NONE, "names the kernel of an error"),
    "autotune/bench.py Bench._times": (NONE, "names the kernels of an error"),
    "autotune/process.py Worker._kill": (NONE, "its own process"),
    # What a process finds out once. A failure that may pass raises, and what raises is not cached.
    "compile/toolchain.py cpu_level": (CERTAIN, "/proc/cpuinfo is not there"),
    "compile/toolchain.py _flavour": (CERTAIN, "there is no driver"),
    "compile/toolchain.py versions": (CERTAIN, "raises where nothing is installed"),
    "compile/provenance.py compiler_files": (CERTAIN, "a module that has no place"),
    "compile/provenance.py _linker_files": (CERTAIN, "a driver that does not say its linker"),
    "config/plugins.py _load": (NONE, "raises"),
    "runtime/syntax.py mistake": (CERTAIN, "a text that is no Python; ResourceError is not cached"),
    "runtime/kernel.py load_runtime_library": (NONE, "raises"),
    "targets/legality.py _check": (CERTAIN, "a rule of the target: pure arithmetic"),
    "selection/measurements.py _packed": (
        CERTAIN,
        "a shipped table that is none; OSError is not cached",
    ),
    # No memory of a failure, whatever it looks like.
    "compile/provenance.py _digest": (NONE, "a digest of files"),
    "runtime/tiers.py Memory._entries": (NONE, "what serves this process only"),
    "support/codec.py _specs_of": (NONE, "the fields of a class"),
    "server/entry_handlers.py body_of": (NONE, "a count of misses"),
    "server/supervisor.py Supervisor._rest": (NONE, "the rest of a line"),
    "server/jobs.py Job.failure": (
        NONE,
        "an answer; its code says the kind",
    ),
    "server/jobs.py Queue._run": (NONE, "the same"),
    "server/metrics.py Metrics.entries": (NONE, "a counter"),
    "server/metrics.py Metrics.refused": (NONE, "a counter"),
    "server/metrics.py Metrics.restarts": (NONE, "a counter"),
    "server/pools.py Pool.restarts": (NONE, "a counter"),
    "server/prewarms.py Prewarms._run": (NONE, "an answer"),
    "server/serve.py App._live": (NONE, "why it did not start"),
    "server/serve.py App.failure": (NONE, "the same"),
    "server/service.py Service.failures": (CERTAIN, "Failures"),
    "server/service.py Service.miss_log": (NONE, "a count of misses"),
    "server/entry_store.py EntryStore._publish": (
        CERTAIN,
        "set aside: this service does not vouch for it",
    ),
    "server/signer_client.py SignerClient.of": (NONE, "ends the connection"),
    "server/signer_client.py SignerClient._begin": (NONE, "ends the connection"),
    "server/signer_client.py SignerClient._connected": (NONE, "ends the connection"),
    "server/signer_client.py SignerClient.renew": (NONE, "the signer before goes on"),
    "server/signer_client.py SignerClient.trouble": (
        PASSING,
        "until a signer answers; tried again",
    ),
}
"""Where a failure may be remembered: of which kind, and for how long; or why it is no memory."""

_HOLDS = re.compile(
    "fail|refus|exclu|negativ|until|rest|dead|backoff|trouble|broken|doubt|miss|reason|tries|proven"
)
"""Names of what holds failures."""

_KEEPS = frozenset(
    {
        *("remember", "remember_failure", "exclude", "_exclude", "quarantine", "_set_aside"),
        *("clear_way", "hide", "hide_record", "_tell_damage", "failed"),
    }
)
"""Names of what remembers for others; its callers are places."""

_STORES = frozenset(
    {
        *("add", "_add", "append", "setdefault", "update", "set", "spend"),
        *("_remember", "_drop", "_trip"),
    }
)
"""Names of what an exception handler may store a failure with."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST, names: tuple[str, ...] = ()) -> Iterator[tuple[str, _Function]]:
    """Yield every function below `node`, with its qualified name."""
    for child in ast.iter_child_nodes(node):
        inner = names
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = (*names, child.name)
            if not isinstance(child, ast.ClassDef):
                yield ".".join(inner), child
        yield from functions(child, inner)


def own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function, but for functions and classes in it."""
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        found = waiting.pop()
        yield found
        if not isinstance(found, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            waiting += ast.iter_child_nodes(found)


def called(nodes: Iterator[ast.AST]) -> set[str]:
    """Return the last part of the name of everything that is called."""
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    return {call.attr if isinstance(call, ast.Attribute) else ast.unparse(call) for call in calls}


def stored(node: ast.AST) -> list[ast.expr]:
    """Return the attributes, items and names that a statement stores to."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else []


def handler_stores(handler: ast.ExceptHandler) -> bool:
    """Return whether an exception handler leaves something behind."""
    nodes = list(ast.walk(handler))
    targets = [each for node in nodes for target in stored(node) for each in ast.walk(target)]
    if any(isinstance(each, (ast.Attribute, ast.Subscript)) for each in targets):
        return True
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    kept = [call for call in calls if isinstance(call, ast.Attribute) and call.attr in _STORES]
    return any("self" in ast.unparse(call) or "service" in ast.unparse(call) for call in kept)


def swallows(function: _Function) -> bool:
    """Return whether a function may go on where something raised."""
    return "suppress" in called(own(function)) or any(
        isinstance(node, ast.ExceptHandler) for node in own(function)
    )


def cached_failure(function: _Function, known: dict[str, _Function]) -> bool:
    """Return whether what a function returns is kept, and may stem from an error."""
    if not any("cache" in ast.unparse(each) for each in function.decorator_list):
        return False
    seen, waiting = {function.name}, [function]
    while waiting:
        found = waiting.pop()
        if swallows(found):
            return True
        new = {name for name in called(own(found)) if name in known} - seen
        seen |= new
        waiting += [known[name] for name in new]
    return False


def holders(tree: ast.AST, node: ast.AST, names: str) -> Iterator[str]:
    """Yield what is made in a module, or in the making of an object, that is to hold failures."""
    for each in own(node):
        for target in stored(each):
            is_own = isinstance(target, ast.Name) if node is tree else _is_attribute(target)
            name = ast.unparse(target).removeprefix("self.")
            is_constant = name.strip("_").isupper() or isinstance(each, ast.AugAssign)
            if is_own and not is_constant and _HOLDS.search(name.lower()) and _is_made(each):
                yield f"{names}{name}"


def _is_attribute(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"


def _is_made(node: ast.AST) -> bool:
    """Return whether an assignment makes something new, in the place of naming what was given."""
    value = getattr(node, "value", None)
    return isinstance(value, (ast.Dict, ast.List, ast.Set, ast.Call, ast.Constant, ast.Tuple))


def places(path: Path) -> Iterator[str]:
    """Yield the places of one module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    every = dict(functions(tree))
    yield from holders(tree, tree, "")
    for name, function in every.items():
        owner = name.rpartition(".")[0]
        if function.name in ("__init__", "_begin"):
            yield from holders(tree, function, f"{owner}.")
        handlers = [node for node in own(function) if isinstance(node, ast.ExceptHandler)]
        used = {node.attr for node in own(function) if isinstance(node, ast.Attribute)}
        keeps = (used | called(own(function))) & _KEEPS
        if keeps or any(map(handler_stores, handlers)) or cached_failure(function, every):
            yield name


def test_every_memory_of_a_failure_is_known() -> None:
    """A new place states here which kind of failure it remembers, and for how long."""
    found = set()
    for path in (*ROOT.rglob("*.py"), *(ROOT / "cache").glob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(APART):
            found |= {f"{name} {place}" for place in places(path)}

    assert sorted(found - PLACES.keys()) == [], (
        "see jitgen/support/failing.py, and say which kind it is"
    )
    assert sorted(PLACES.keys() - found) == [], "these are gone: take them out"


def test_a_new_place_is_found(tmp_path: Path) -> None:
    """What a careless change would add, in each of the ways in which a failure can be kept."""
    module = tmp_path / "module.py"
    module.write_text(
        """
from functools import cache, lru_cache

_broken = {}

def asks(key):
    try:
        return work(key)
    except OSError as error:
        _broken[key] = error

@cache
def once():
    return helper()

def helper():
    try:
        return 1
    except OSError:
        return 0

@lru_cache(maxsize=1)
def raises():
    return work(1)

class Place:
    def __init__(self, until):
        self._unreachable_until = 0.0
        self._until = until

    def try_it(self, store):
        try:
            work(1)
        except ValueError:
            self._keys.add(1)

    def tell(self, store):
        store.index.remember_failure("key", "name", "reason", 60)

    def harmless(self):
        try:
            work(1)
        except ValueError:
            return None
"""
    )

    assert set(places(module)) == {
        *("_broken", "asks", "once", "Place._unreachable_until", "Place.try_it", "Place.tell")
    }
