# SPDX-License-Identifier: Apache-2.0
"""The places of the product that open files, and why none of them decides whom jitgen trusts."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_FUNCTIONS = {"open", "read_bounded"}
_METHODS = {
    *("read_text", "read_bytes", "load_cert_chain", "load_verify_locations", "safe_open"),
    *("memmap", "fromfile", "loadtxt", "genfromtxt"),
}
_MODULES = {"os", "io", "gzip", "bz2", "lzma", "zipfile", "tarfile"}
_MODES = set("rwaxbt+")

_CACHE = "below a root of the cache, whose way is walked and checked as it is opened"
_OWN = "of jitgen's own package, or of an installed one: who can write there runs here anyway"
_SCRATCH = "in a private folder of this process, see jitgen.cache.scratch"
_NAMED = "named by the user of the command, for this once; it decides nothing about trust"
_CHOICE = "chooses among legal kernels, whatever its origin: bounds and checks are all it needs"
_SIGNED = "checked by digest and signature after it was read, wherever it came from"
_SYSTEM = "the kernel's own, of this process or this machine"
_WRITES = "written, not read"

READS = {
    "bench/cases.py:load": _NAMED,
    "bench/choice/recorded.py:load": _NAMED,
    "bench/report.py:Report.read": _NAMED,
    "bench/pod.py:Places._serve": "the log of a service that the suite started itself",
    "bundle/image.py:_reader": _SIGNED,
    "bundle/image.py:_unpacked": _SIGNED,
    "cache/folder.py:Folder.append": _WRITES,
    "cache/folder.py:Folder.folder": _CACHE,
    "cache/folder.py:Folder.read": _CACHE,
    "cache/folder.py:Folder.replace_durably": "a folder, to sync it",
    "cache/folder.py:Folder.write": _WRITES,
    "cache/publishing.py:is_held": "only locked",
    "cache/remembered.py:_lock_file": "only locked",
    "cache/root.py:Root._step": _CACHE,
    "cache/root.py:Root._walk": _CACHE,
    "cache/root.py:_tag": _WRITES,
    "cache/root.py:filesystem_type": _SYSTEM,
    "cache/scratch.py:_new_folder": "a folder that it made where no other user can rename",
    "cache/scratch.py:sweep_scratch": "a folder, to lock and remove it",
    "cli/main.py:_discard_output": _SYSTEM,
    "cli/main.py:_open_streams": _SYSTEM,
    "cli/trust_document.py:_log": _WRITES,
    "cli/trust_document.py:write_document": _WRITES,
    "cli/tune_tables.py:import_from_file": _CHOICE,
    "compile/capacity.py:_read": _SYSTEM,
    "compile/compiler.py:_linked": _SCRATCH,
    "compile/isolated.py:compile_isolated": _SCRATCH,
    "compile/linker.py:link": _SCRATCH,
    "compile/processes.py:children_of": _SYSTEM,
    "bench/layer/ranks.py:rows": "figures that a process of its own wrote into a new folder",
    "compile/provenance.py:_read": _OWN,
    "compile/toolchain.py:_head": _OWN,
    "codegen/render.py:_line": _OWN,
    "compile/toolchain.py:_require_readable": "a folder, to see whether one can be opened",
    "compile/toolchain.py:version": _OWN,
    "config/plugins.py:_holds": _OWN,
    "support/documents.py:_open": "how read_bounded opens",
    "support/documents.py:read_bounded": "the way to read what anybody may have written",
    "emulator/__main__.py:main": "named by its user; nothing of it runs natively",
    "emulator/document.py:Document._kernel": "named by its user's document; run nowhere natively",
    "emulator/document.py:read_document": "named by its user; nothing of it runs natively",
    "emulator/host/runtime.py:_version": _OWN,
    "emulator/host/runtime.py:compile_stub": _SCRATCH,
    "formats/prepacked_files.py:load_prepacked": "weights: numbers, in a format without code",
    "inspect/document.py:asset": _OWN,
    "layer/checkpoints/files.py:_indexed": "which file of a checkpoint has which tensor",
    "layer/checkpoints/files.py:opened": "weights: numbers, in a format without code",
    "layer/checkpoints/model_config.py:said": "what a checkpoint says of its layer: numbers, names",
    "parallel/memory.py:_of_files.make": "made anew, under a name that no other user can guess",
    "plans/plan.py:load": "a list of problems: it decides what is compiled, not what code that is",
    "plans/recording.py:Recording.save": _WRITES,
    "plans/recording.py:read": _CHOICE,
    "remote/breaker.py:Breaker._alone": "only locked",
    "remote/files.py:Files.read": _SIGNED,
    "remote/http.py:_no_descriptor": "a folder, to see whether one can be opened",
    "runtime/override.py:override": "an argument of the program's, which runs any file it likes",
    "server/bundle_handlers.py:_has_digest": "handed out by its digest, which clients check",
    "server/certificates.py:check_certificates": "in memory: what was checked a moment before",
    "server/revocations.py:Revocations._write": _WRITES,
    "server/compile_task.py:_Digests.digest": "in the pool's own folder: a wrong one only shows",
    "server/ui.py:style": _OWN,
    "signing/keys.py:PrivateKey.save": _WRITES,
    "templates/__init__.py:contents": _OWN,
    "ownership/files.py:_arrived": "the way to read what is trusted",
    "ownership/files.py:_opened_in": "the way to read what is trusted",
    "ownership/files.py:_step": "the way to read what is trusted",
    "selection/device.py:_text": _SYSTEM,
    "runtime/lock.py:read": "what must be as it is, to be compared with: it can only refuse",
    "selection/measurements.py:digests": _OWN,
    "selection/packed.py:read": _CHOICE,
    "verify/files.py:_brought": "named by the user of jitgen verify FILE, which runs it",
    "verify/files.py:_compiled": "named by the user of jitgen verify FILE, which runs it",
}
"""Module and function of each place, and what it reads."""


def reads(tree: ast.AST) -> dict[str, ast.AST]:
    """Return the functions of a module that open files by themselves, by qualified name."""
    found: dict[str, ast.AST] = {}
    for name, function, call in _calls(tree, "", tree):
        if _opens(call):
            found.setdefault(name, function)
    return found


def _calls(node: ast.AST, name: str, function: ast.AST) -> Iterator[tuple[str, ast.AST, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _calls(child, f"{name}.{child.name}".lstrip("."), child)
            continue
        if isinstance(child, ast.Call):
            yield name, function, child
        yield from _calls(child, name, function)


def _opens(call: ast.Call) -> bool:
    called = call.func
    if isinstance(called, ast.Name):
        return called.id in _FUNCTIONS
    if not isinstance(called, ast.Attribute) or called.attr != "open":
        return isinstance(called, ast.Attribute) and called.attr in _METHODS
    owner = called.value.id if isinstance(called.value, ast.Name) else ""
    if owner == "Store":
        return False
    texts = [x.value for x in call.args if isinstance(x, ast.Constant)]
    modes = [x for x in texts if isinstance(x, str) and set(x) <= _MODES]
    return owner in _MODULES or bool(modes) or any(x.arg == "encoding" for x in call.keywords)
