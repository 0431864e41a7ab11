# SPDX-License-Identifier: Apache-2.0
"""The hostile texts: a file each, how it is written, which command meets it, and what that says."""

# ruff: noqa: E501  # a text is a line of the table

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jitgen.runtime.spec import key
from tests.chaos.kernels import ARCH, CONFIGS, loader, name_of

ESCAPES = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202e"
NAME = name_of(CONFIGS[0])


@dataclass(frozen=True)
class Text:
    """
    One hostile file.

    Attributes:
        name: Description of the text.
        write: Writes it; takes the cache's root, which holds two kernels, and a free path.
        words: The command that meets it; ``FILE`` stands for the path, ``KEY`` for a key.
        says: Text that the command's output must have; empty where silence is right.
        suffix: Ending of the free path.
    """

    name: str
    write: Callable[[Path, Path], object]
    words: tuple[str, ...]
    says: str = ""
    suffix: str = ""


def _entry(root: Path) -> Path:
    name = key(CONFIGS[0], ARCH)
    return root / "v1" / "entries" / name[:2] / name


def seal(values: dict[str, object]) -> bytes:
    """Return a ``meta.json`` of any values, with the digest that it should have."""
    blank = json.dumps(values | {"digest": "0" * 64}, indent=2, sort_keys=True).encode() + b"\n"
    digest = hashlib.sha256(blank).hexdigest().encode()
    return blank.replace(b'"digest": "' + b"0" * 64, b'"digest": "' + digest)


def _meta(**changes: object) -> Callable[[Path, Path], None]:
    """Return a function that changes fields of the record of an entry, and seals it anew."""

    def write(root: Path, _: Path) -> None:
        path = _entry(root) / "meta.json"
        values = {**json.loads(path.read_text()), **changes}
        del values["digest"]
        _put(path, seal(values))

    return write


def _raw_meta(data: bytes) -> Callable[[Path, Path], None]:
    return lambda root, _: _put(_entry(root) / "meta.json", data)


def _put(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def _sparse(path: Path, size: int = 2**30) -> None:
    path.unlink(missing_ok=True)
    with path.open("wb") as stream:
        stream.truncate(size)


def _journal(line: bytes) -> Callable[[Path, Path], None]:
    return lambda root, _: _put(root / "v1" / "journal", line + b"\n")


def _row(text: str) -> Callable[[Path, Path], None]:
    """Return a function that puts `text` into every row of the index."""

    def write(root: Path, _: Path) -> None:
        import sqlite3

        store = loader(root).store
        store.index.remember_failure("ab" * 32, "name", "reason", 600)
        store.index.rows()
        store.index.close()
        with sqlite3.connect(root / "v1" / "index" / "cache.db") as connection:
            connection.execute("UPDATE Cache SET value = ?", (text,))
        connection.close()

    return write


def _failure(name: str, reason: str, ttl_s: float = 600.0) -> Callable[[Path, Path], None]:
    def write(root: Path, _: Path) -> None:
        store = loader(root).store
        store.index.remember_failure("ab" * 32, name, reason, ttl_s)
        store.index.close()

    return write


def _tuned(data: bytes) -> Callable[[Path, Path], None]:
    """Return a function that puts `data` where a measurement for a problem is looked for."""

    def write(root: Path, _: Path) -> None:
        from jitgen.config import Layout
        from jitgen.config.grouped_gemm import GroupedGemmProblem
        from jitgen.selection import device
        from jitgen.selection.choice import bucket

        problem = bucket(
            GroupedGemmProblem(layout=Layout.RAGGED, groups=2, m=64, n=64, k=128), ARCH
        )
        folder = root / "v1" / "tuned" / device.folder(ARCH) / "buckets"
        folder.mkdir(parents=True)
        (folder / f"{problem.slug}.json").write_bytes(data)

    return write


def _file(data: bytes) -> Callable[[Path, Path], None]:
    return lambda _, path: _put(path, data)


def _plan(**values: str) -> bytes:
    fields = {
        "layout": "'ragged'",
        "groups": "8",
        "rows_per_group": "1",
        "matrix": "{ n = 1, k = 1 }",
    }
    lines = [f"{name} = {value}" for name, value in {**fields, **values}.items()]
    return "\n".join(["[[problems]]", *lines]).encode()


def _table(**changes: object) -> bytes:
    table = {"schema": 1, "device": "x", "arch": "cpu", "conditions": {}, "records": []}
    return json.dumps({**table, **changes}).encode()


_LS, _EXPLAIN = ("cache", "ls"), ("cache", "explain", NAME)
_PREWARM = ("prewarm", "FILE", "--arch", "cpu", "--dry-run")
_IMPORT = ("tune", "--import", "FILE", "--arch", "cpu")
_SELECT = ("select", "-g", "2", "-m", "64", "-n", "64", "-k", "128", "--arch", "cpu")
_MANY = "[" + ", ".join(map(str, range(1, 301))) + "]"
_CASES = "from jitgen.bench.cases import load; load(Path('FILE'))"
_REPORT = "from jitgen.bench.grouped_report import GroupedReport; GroupedReport.read(Path('FILE'))"

TEXTS = (
    # the record of an entry
    Text("meta: a gigabyte of nothing", lambda r, _: _sparse(_entry(r) / "meta.json"), _LS),
    Text("meta: nesting", _raw_meta(b"[" * 250_000), _EXPLAIN),
    Text("meta: an endless string", _raw_meta(b'{"a":"' + b"\\u0041" * 40_000), _EXPLAIN),
    Text("meta: quotes", _raw_meta(b'"' * 250_000), _EXPLAIN),
    Text("meta: sealed with NaN", _meta(compile_s=float("nan")), ("cache", "verify"), "NaN"),
    Text("meta: sealed with infinity", _meta(link_s=float("inf")), ("cache", "verify"), "Infinity"),
    Text("meta: sealed with escapes in the name", _meta(name=ESCAPES), _LS),
    Text("meta: sealed with a forged line", _meta(name="x\nremoved everything"), _LS),
    Text("meta: sealed with a long name", _meta(name="x" * 200_000), _LS),
    Text("meta: sealed with a huge size", _meta(compile_s=10**300), ("show", "KEY")),
    Text("meta: sealed with many files", _meta(files={str(i): {} for i in range(9000)}), _EXPLAIN),
    Text("meta: sealed with a deep config", _meta(config=json.loads("[" * 40 + "]" * 40)), _LS),
    Text("library: a gigabyte of nothing", lambda r, _: _sparse(_entry(r) / "kernel.so"), _EXPLAIN),
    # beside the entries
    Text("journal: a number of 400 digits", _journal(b'["use","%s","",1%s]' % (b"ab" * 32, b"0" * 400)), _LS),
    Text("journal: a number of 4,000 digits", _journal(b'["use","%s","",1%s]' % (b"ab" * 32, b"0" * 4000)), _LS),
    Text("journal: 4 MB in one line", _journal(b'["use","' + b"a" * 2**22), _LS),
    Text("journal: 4 MB of lines", _journal(b'["new","%s","n","a",1,1]\n' % (b"ab" * 32) * 40_000), _LS),
    Text("journal: names with escapes", _journal(json.dumps(["new", key(CONFIGS[0], ARCH), ESCAPES, ESCAPES, 1, 1]).encode()), _LS),
    Text("journal: a gigabyte of nothing", lambda r, _: _sparse(r / "v1" / "journal"), _LS),
    Text("ledger: long", lambda r, _: _put(r / "v1" / "size", b"=1\n" + b"+1\n" * 10**6), ("cache", "prune")),
    Text("pins: a name with escapes", lambda r, _: (r / "v1" / "pins" / ESCAPES.replace("/", "")).touch(), _LS),
    Text("index: nesting", _row("[" * 10**6), _LS),
    Text("index: 40 MB in a row", _row("x" * 40_000_000), _LS),
    Text("index: numbers", _row(json.dumps({"ab" * 32: ["n", "a", 10**30, 1, 1, 1e308]})), _LS),
    Text("failure: escapes", _failure(ESCAPES, ESCAPES + "\nforged"), ("cache", "ls", "--failures")),
    Text("failure: for ever", _failure("n", "r", 1e300), ("cache", "ls", "--failures")),
    Text("tuned: nesting", _tuned(b"[" * 10**6), _SELECT, "nests deeper"),
    Text("tuned: NaN", _tuned(b'{"schema": NaN}'), _SELECT, "NaN"),
    Text("tuned: a gigabyte of nothing", lambda r, p: (_tuned(b"")(r, p), _sparse(next((r / "v1" / "tuned").rglob("*.json")))), _SELECT, "bytes"),
    # what users name
    Text("plan: nesting", _file(_plan(groups="[" * 200_000)), _PREWARM, "nests deeper", suffix=".toml"),
    Text("plan: dotted names", _file(b"a." * 100_000 + b"b = 1"), _PREWARM, "dots", suffix=".toml"),
    Text("plan: an integer of 5,000 digits", _file(_plan(groups="9" * 5000)), _PREWARM, "more than 100 digits", suffix=".toml"),
    Text("plan: an integer of 40 digits", _file(_plan(groups="9" * 40)), _PREWARM, "more than 20 digits", suffix=".toml"),
    Text("plan: nesting behind a comment", _file(b"# " + b"]" * 2000 + b"\nproblems = " + b"[" * 2000), _PREWARM, "nests deeper", suffix=".toml"),
    Text("plan: a quarter of a megabyte of tables", _file(b"[[problems]]\n" * 20_000), _PREWARM, "is required", suffix=".toml"),
    Text("plan: 9 million combinations", _file(_plan(layout="['ragged', 'masked', 'contiguous']", groups=_MANY, rows_per_group=_MANY, dtype="['e4m3', 'bf16', 'f32']")), _PREWARM, "combinations", suffix=".toml"),
    Text("plan: escapes", _file(_plan(layout=json.dumps(ESCAPES))), _PREWARM, "must be one of", suffix=".toml"),
    Text("plan: a gigabyte of nothing", lambda _, p: _sparse(p), _PREWARM, "bytes", suffix=".toml"),
    Text("plan: a megabyte of comments", _file(b"# x\n" * 250_000), _PREWARM, "bytes", suffix=".toml"),
    Text("table: nesting", _file(b"[" * 10**6), _IMPORT, "nests deeper", suffix=".json"),
    Text("table: NaN", _file(_table(schema=float("nan"))), _IMPORT, "NaN", suffix=".json"),
    Text("table: escapes", _file(_table(device=ESCAPES)), _IMPORT, "measured on", suffix=".json"),
    Text("table: a large number", _file(_table(records=[{"schema": 1, "times_us": {"a": 10**15}}])), _IMPORT, "record 1", suffix=".json"),
    Text("table: 10,000 records", _file(_table(records=[{}] * 10_000)), _IMPORT, "record 1", suffix=".json"),
    Text("cases: nesting", _file(b"[" * 10**6), ("python", _CASES), "nests deeper", suffix=".json"),
    Text("cases: a long value", _file(json.dumps({"cases": ["x" * 900_000]}).encode()), ("python", _CASES), "must be an object", suffix=".json"),
    Text("report: NaN", _file(b'{"x": NaN}'), ("python", _REPORT), "NaN", suffix=".json"),
    Text("a name: 100,000 digits", _file(b""), ("show", "grouped_gemm_ragged_f32_f32_tensor_f32_t" + "9" * 100_000 + "x1x1_c1x1_acc1_cpu"), "no kernel name"),
    Text("a name: escapes", _file(b""), ("show", ESCAPES), "no kernel name"),
)  # fmt: skip
