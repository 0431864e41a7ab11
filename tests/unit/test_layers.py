# SPDX-License-Identifier: Apache-2.0
"""Imports point one way, and heavy modules stay where they belong."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import jitgen
import jitgen.emulator

ROOT = Path(jitgen.__file__).parent
LAYERS = [
    {"errors", "_version"},
    {"emulator", "support"},
    {"events"},
    {"settings"},
    {"ownership"},
    {"config", "signing"},
    {"formats"},
    {"templates"},
    {"cache", "targets"},
    {"codegen"},
    {"compile", "remote"},
    {"selection"},
    {"runtime"},
    {"plans"},
    {"ops"},
    {"parallel"},
    {"layer", "quantize", "reference"},
    {"bundle", "fleet", "integrations", "metrics", "torch"},
    {"verify"},
    {"autotune", "inspect"},
    {"server"},
    {"bench"},
    {"cli"},
]
"""The folders, from the lowest up; those of a line import nothing of each other."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
_NAMED = re.compile(r"jitgen(\.[a-z_0-9]+)+:\w+")
HEAVY = {
    *("cutlass", "jinja2", "diskcache", "torch", "tvm_ffi", "rich", "numpy"),
    *("cryptography", "obstore", "urllib3", "zstandard"),
    *("prometheus_client", "distributed"),
}


@cache
def modules() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(ROOT.rglob("*.py"))
        + sorted((ROOT / "cache").glob("*.py"))
        + sorted((ROOT / "templates").glob("*.py"))
    ]


def folder(module: str) -> str:
    """Return the folder of a module: what follows `jitgen`; empty for the facade itself."""
    return [*module.split("."), ""][1]


@cache
def imported(tree: ast.AST, *, with_types: bool = True) -> set[str]:
    """
    Return the names of every module that `tree` imports, at any depth.

    Args:
        tree: A module.
        with_types: Whether imports for the type checker alone count, too.
    """
    names: set[str] = set()
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.expr):
            continue  # most of a module, and no import is in one
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        nodes += node.orelse if is_typing and not with_types else ast.iter_child_nodes(node)  # type: ignore[attr-defined]
    return names


def named(tree: ast.AST) -> set[str]:
    """Return the modules of jitgen that `tree` names as ``module:object``, to be loaded later."""
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    return {t.partition(":")[0] for t in texts if isinstance(t, str) and _NAMED.fullmatch(t)}


def test_imports_point_one_way() -> None:
    """A module imports from its own folder or lower ones, also within functions and as text."""
    wrong = []
    for name, tree in modules():
        own = Path(name).with_suffix("").parts[0]
        if own in ("__init__", "__main__"):
            continue
        for other in imported(tree, with_types=False) | named(tree):
            theirs = folder(other) if other.split(".")[0] == "jitgen" else own
            if theirs == "" and LEVEL[own] < LEVEL["bench"]:
                wrong.append(f"{name} imports the facade")
            elif theirs not in ("", own) and LEVEL.get(theirs, 0) >= LEVEL[own]:
                wrong.append(f"{name} imports {other}")

    assert wrong == []


def test_every_room_has_its_place() -> None:
    found = {Path(name).with_suffix("").parts[0] for name, _ in modules()}

    assert found - {"__init__", "__main__"} == LEVEL.keys()


def test_only_one_module_imports_the_compiler() -> None:
    """compile/compiler.py imports the compiler, runtime/kernel.py for an unlinked object."""
    users = {
        name
        for name, tree in modules()
        if any(o.split(".")[0] == "cutlass" for o in imported(tree))
    }

    assert users <= {"compile/compiler.py", "runtime/kernel.py"}


def test_operations_know_of_no_emulator() -> None:
    """Their samples serve tests, benchmarks and `jitgen verify` alike."""
    users = {
        name
        for name, tree in modules()
        if name.startswith("ops/") and any("jitgen.emulator" in o for o in imported(tree))
    }

    assert not users


def test_the_emulator_is_used_by_its_face_alone() -> None:
    """Others import the names that `jitgen.emulator` itself lists, so that it can leave any day."""
    tests = Path(__file__).parents[1]
    trees = [(name, tree) for name, tree in modules() if not name.startswith("emulator/")]
    trees += [
        (f"tests/{path.relative_to(tests)}", ast.parse(text))
        for path in sorted(tests.rglob("*.py"))
        if tests / "emulator" not in path.parents and "goldens" not in path.parts
        if "jitgen.emulator" in (text := path.read_text(encoding="utf-8"))
    ]
    names = {f"jitgen.emulator.{name}" for name in jitgen.emulator.__all__}
    wrong = [
        f"{name} imports {other}"
        for name, tree in trees
        for other in imported(tree) | named(tree)
        if other.startswith("jitgen.emulator.") and other not in names
    ]

    assert wrong == []


def test_files_of_calls_import_each_other_one_way() -> None:
    """
    Also within functions: a circle of dispatch, tracing and call used to have 19 files. The
    gradient of a product is a product, and is named by a text.
    """
    files = {_dotted(name): tree for name, tree in modules() if name.startswith("ops/")}
    graph = {
        name: (imported(tree, with_types=False) & files.keys()) - {name}
        for name, tree in files.items()
    }

    assert len([*graphlib.TopologicalSorter(graph).static_order()]) == len(files) > 50


def _dotted(name: str) -> str:
    return "jitgen." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_nothing_pickles() -> None:
    """No pickle is read or written anywhere."""
    users = {
        name
        for name, tree in modules()
        if {"pickle", "shelve", "marshal", "dill", "cloudpickle"} & imported(tree)
    }

    assert not users


OWN_PROCESSES = {
    *("compile/workers.py", "compile/worker_server.py"),
    *("server/check.py", "server/confine.py", "server/supervisor.py", "server/validator.py"),
    *("server/pools.py", "server/signer_client.py"),
    *("autotune/process.py", "autotune/worker.py", "autotune/space.py"),
    *("bench/pod.py", "bench/processes.py"),
}
"""They read what a process says that they started themselves, and what they have just written."""


SEALED = "emulator/document.py"
"""It knows nothing of jitgen, so that it bounds what it parses itself."""


def test_documents_are_parsed_in_one_place() -> None:
    """Files of unknown origin are bounded before it is parsed."""
    users = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in {"json.loads", "json.load", "tomllib.loads", "tomllib.load"}
    }

    assert users - {"support/documents.py", SEALED} == OWN_PROCESSES


def test_importing_jitgen_is_light() -> None:
    """`import jitgen` brings none of the heavy modules."""
    code = f"import sys, jitgen; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_importing_jitgen_imports_nothing_of_its_rooms() -> None:
    """Every program waits for it, also one that only asks for the version: some 5 ms."""
    code = "import sys, jitgen; print(*(name for name in sys.modules if 'jitgen.' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {
        *("errors", "settings", "_version", "support"),
        *(f"support.{name}" for name in ("moved", "text", "values", "variables")),
    }

    assert {name.removeprefix("jitgen.") for name in done.stdout.split()} == names


def test_public_names_resolve() -> None:
    """Every name in __all__ is there, and an unknown one raises AttributeError."""
    for name in jitgen.__all__:
        assert getattr(jitgen, name) is not None
    assert not hasattr(jitgen, "no_such_name")


def test_modules_do_not_hide_public_objects() -> None:
    """`jitgen.settings` and `jitgen.select` are the objects, whatever was imported since."""
    import jitgen.selection.choice
    import jitgen.settings

    assert callable(jitgen.select)
    assert jitgen.settings.cache == "rw"


def test_files_stay_small() -> None:
    """One idea a file: 150 to 400 lines are the habit, 700 the limit of what one theme may take."""
    long = {
        path.name: lines
        for path in ROOT.parent.rglob("*.py")
        if not any(part.startswith(".") for part in path.relative_to(ROOT.parent).parts)
        and "goldens" not in path.parts
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > 700
    }

    assert not long
