# SPDX-License-Identifier: Apache-2.0
"""Imports point one way, and heavy modules stay where they belong."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import jitgen

ROOT = Path(jitgen.__file__).parent
LAYERS = [
    {"errors", "frozen"},
    {
        *(
            "emulator",
            "text",
            "documents",
            "settings",
            "variables",
            "values",
            "events",
            "forks",
            "boundary",
            "failing",
            "trusted_files",
        ),
        "_version",
    },
    {"config", "layouts"},
    {"signing"},
    {"formats"},
    {
        *("ops.protocol", "ops.grouped_gemm.config", "ops.grouped_gemm_wgrad.config"),
        *("ops.moe_fc2_dense.config", "ops.silu_mul_quantize.config", "ops.quantize.config"),
        *("ops.permute_quantize.config", "ops.combine.config"),
        *("ops.route.config", "ops.grouped_gemm.words"),
        "ops.unpack_weights.config",
    },
    {"cache", "targets", "templates"},
    {"codegen"},
    {"compile"},
    {"tuning"},
    {"runtime", "plans", "recording", "remote", "metrics"},
    {"fleet", "bundle"},
    {"ops", "quantize", "reference"},
    {"layer"},
    {"integrations"},
    {"torch"},
    {"verify"},
    {"inspect"},
    {"tuning.measure"},
    {"tuning.search"},
    {"server"},
    {"bench", "cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
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


def level(module: str) -> int | None:
    """Return the layer of a module: that of the nearest room it is in; None: the facade."""
    parts = module.removeprefix("jitgen.").split(".")
    for length in range(len(parts), 0, -1):
        if (name := ".".join(parts[:length])) in LEVEL:
            return LEVEL[name]
    return None


@cache
def imported(tree: ast.AST) -> set[str]:
    """Return the names of every module that `tree` imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {node.module} - {"jitgen"}  # `from jitgen import x` is about x
    return names


def test_imports_point_one_way() -> None:
    """A module imports only from its own layer or from those below it; the facade only on top."""
    wrong = []
    for name, tree in modules():
        own = level(".".join(Path(name).with_suffix("").parts).removesuffix(".__init__"))
        if name in ("__init__.py", "__main__.py"):
            continue
        assert own is not None, f"{name} has no layer"
        for other in imported(tree):
            if other.split(".")[0] == "jitgen":
                theirs = level(other)
                if own < (LEVEL["bench"] if theirs is None else theirs):
                    wrong.append(f"{name} imports {other}")

    assert not wrong


def test_only_one_module_imports_the_compiler() -> None:
    """The compiler is wanted by compile/compiler.py, and by loader.py for an unlinked object."""
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


def test_nobody_pickles() -> None:
    """No pickle is read or written anywhere."""
    users = {
        name
        for name, tree in modules()
        if {"pickle", "shelve", "marshal", "dill", "cloudpickle"} & imported(tree)
    }

    assert not users


OWN_PROCESSES = {
    *("compile/workers.py", "compile/worker_server.py"),
    *("server/check.py", "server/confine.py", "server/foreman.py", "server/gate.py"),
    *("server/pools.py", "server/signatures.py"),
    *("tuning/search/process.py", "tuning/search/worker.py", "tuning/search/space.py"),
    *("bench/cache.py", "bench/emulator.py", "bench/pod.py", "bench/pod_places.py"),
    *("bench/prepare.py", "bench/start.py"),
}
"""They read what a process says that they started themselves, and what they have just written."""


def test_documents_are_parsed_in_one_place() -> None:
    """What somebody else may have written is bounded before it is parsed: `jitgen.documents`."""
    users = {
        name
        for name, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in {"json.loads", "json.load", "tomllib.loads", "tomllib.load"}
    }

    assert users - {"documents.py"} == OWN_PROCESSES


def test_importing_jitgen_is_light() -> None:
    """`import jitgen` brings none of the heavy modules."""
    code = f"import sys, jitgen; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_importing_jitgen_imports_nothing_of_its_rooms() -> None:
    """Every program waits for it, also one that only asks for the version: some 5 ms."""
    code = "import sys, jitgen; print(*(name for name in sys.modules if 'jitgen.' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {*("errors", "settings", "variables", "values", "text"), "_version"}

    assert {name.removeprefix("jitgen.") for name in done.stdout.split()} == names


def test_public_names_resolve() -> None:
    """Every name in __all__ is there, and an unknown one raises AttributeError."""
    for name in jitgen.__all__:
        assert getattr(jitgen, name) is not None
    assert not hasattr(jitgen, "no_such_name")


def test_modules_do_not_hide_public_objects() -> None:
    """`jitgen.settings` and `jitgen.select` are the objects, whatever was imported since."""
    import jitgen.settings
    import jitgen.tuning.choice

    assert callable(jitgen.select)
    assert jitgen.settings.cache == "rw"


def test_files_stay_small() -> None:
    """One idea a file: none over 400 lines."""
    long = {
        path.name: lines
        for path in ROOT.parent.rglob("*.py")
        if not any(part.startswith(".") for part in path.relative_to(ROOT.parent).parts)
        and "goldens" not in path.parts
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }

    assert not long
