# SPDX-License-Identifier: Apache-2.0
"""Kernels that are not compiled, with hostile texts; and a reader of pages."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from jitgen.codegen.partials import Part
from jitgen.compile.inspect import Resources
from jitgen.config import Layout
from jitgen.config.grouped_gemm import GroupedGemmProblem
from jitgen.inspect import code, emulated, hardware
from jitgen.inspect.kernel import Inspected, Number
from jitgen.inspect.measured import Measurement, Reason, Speed
from jitgen.inspect.memory import MemoryMap, Region

EVIL = "\"'><img src=x onerror=alert(1)></script><script>alert(2)</script><!-- \u202e & <b>"
"""A text that breaks out of texts, attributes, comments and scripts if it is not escaped."""

SOURCE = f'''\
"""A kernel. {EVIL.replace(chr(34), "")}"""
import cutlass

TILE = 128  # {EVIL}


def kernel(a, out):
    total = a[0] * TILE
    out[0] = total
'''

PTX = f"""\
.version 8.8
.target sm_90a
.visible .entry kernel(
\t.param .b64 p0
)
{{
\t.loc\t1 8 5
\tmul.f32 \t%f1, %f0, 0f43000000;
\t.loc\t1 9 5
\tst.global.f32 \t[%rd1], %f1; // {EVIL}
\tret;
}}
\t.file\t1 "/tmp/kernel.py"
\t.section\t.debug_info
.b8 1
"""

SASS = f"""\
//--------------------- .text.kernel --------------------------
\t//## File ".nv_debug_ptx_txt", line 8
        /*0000*/                   FMUL R1, R2, 128 ;
.L_x_1:
\t//## File ".nv_debug_ptx_txt.12", line 10
        /*0010*/              @!P0 STG.E desc[UR4][R2.64], R1 ;  /* {EVIL} */
        /*0020*/                   EXIT ;
"""

PROBLEM = GroupedGemmProblem(layout=Layout.RAGGED, groups=8, m=64, n=4096, k=7168)


def kernel(name: str = EVIL, **changes: Any) -> Inspected:
    """Return everything about a kernel of this name, with `changes`."""
    verified = {
        "right": False,
        "trials": [
            {
                "problem": EVIL,
                "values": "integers",
                "right": False,
                "wrong": 3,
                "largest": 0.5,
                "fault": None,
                "runs": [{"mode": EVIL, "seconds": 0.5, "findings": [finding()]}],
            }
        ],
        "gaps": [finding(kind="never executed")],
        "coverage": [
            {
                "instructions": [2, 3],
                "functions": {EVIL: {"lines": [1, 2], "never": [9]}},
                "branches": [3, 4],
                "one_way": [{"place": "ptx:8", "never": "taken"}],
                "blocks": [[8, 8, 4], [10, 11, 0]],
            }
        ],
    }
    measurement = Measurement(
        problem=PROBLEM,
        time_us=61.4,
        winner=EVIL,
        best_us=57.0,
        rivals=8,
        source="tuned",
        device=EVIL,
        date=EVIL,
        flop=2 * 64 * 4096 * 7168,
        traffic=240_000_000,
    )
    roofs = hardware.Roofs(device=EVIL, flop_rate=1.5e15, byte_rate=4.8e12)
    region = Region(name=EVIL, start=0, size=1000, detail=EVIL)
    values: dict[str, Any] = {
        "name": name,
        "arch": "sm_90a",
        "key": "ab" * 32,
        "config": {"tile": {"n": 128}, EVIL: EVIL},
        "numbers": (Number(name=EVIL, value=7, meaning=EVIL),),
        "key_document": {EVIL: {EVIL: EVIL}},
        "parts": (Part(partial=EVIL, depth=1, first=3, last=9, own_lines=5),),
        "listings": (code.source(SOURCE), code.ptx(PTX), code.sass(SASS, PTX)),
        "resources": Resources(
            registers=168,
            threads=384,
            stack_bytes=0,
            local_bytes=0,
            shared_bytes=1024,
            barriers=16,
            mbarriers=18,
            spill_instructions=0,
            code_bytes=48,
        ),
        "shared": MemoryMap(regions=(region,), total=1024, limit=232_448, unit="bytes"),
        "tensor": MemoryMap(regions=(region,), total=512, limit=512, unit="columns"),
        "occupancy": hardware.occupancy("sm90", registers=168, threads=384, shared_bytes=1024),
        "speed": Speed(
            measurements=(measurement,),
            reasons=(Reason(problem=PROBLEM, source=EVIL, why=EVIL, plan=EVIL),),
            roofs=(roofs,),
            excluded=EVIL,
        ),
        "emulation": emulated.emulation(verified),
        "entry": {EVIL: EVIL},
        "notes": (EVIL,),
    }
    return Inspected(**(values | changes))


def finding(kind: str = "race") -> dict[str, Any]:
    """Return a finding in JSON form."""
    return {
        "kind": kind,
        "severity": "error",
        "message": EVIL,
        "place": f"kernel.py:9 (kernel) | ptx:10: {EVIL}",
        "who": EVIL,
        "count": 2,
    }


@dataclass
class Page(HTMLParser):
    """A page, read as a browser would: elements, attributes, scripts, and what a reader sees."""

    markup: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self.feed(self.markup)
        self.close()
        self.errors += [f"{name} is not closed" for name in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See an element begin."""
        self.elements.append((tag, dict(attrs)))
        if len(dict(attrs)) != len(attrs):
            self.errors.append(f"{tag} has an attribute twice")
        if tag not in ("meta", "input"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See an element that has no end."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """See an element end."""
        if not self._open or self._open.pop() != tag:
            self.errors.append(f"{tag} ends, and did not begin")

    def handle_data(self, data: str) -> None:
        """See text."""
        self.texts.setdefault(self._open[-1] if self._open else "", []).append(data)

    def handle_comment(self, data: str) -> None:
        """See a comment: there is none."""
        self.errors.append(f"a comment: {data}")

    def all(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of every element of a name."""
        return [attributes for tag, attributes in self.elements if tag == name]

    @property
    def policy(self) -> str:
        """The content security policy."""
        (found,) = (x["content"] for x in self.all("meta") if "http-equiv" in x)
        return str(found)

    @property
    def words(self) -> str:
        """All that a reader sees."""
        hidden = ("style", "script")
        return " ".join(
            text for tag, texts in self.texts.items() if tag not in hidden for text in texts
        )

    def check(self) -> None:
        """Assert what holds of every page: nothing gets in, nothing gets out, links lead on."""
        assert not self.errors, self.errors[:5]
        names = {name for name, _ in self.elements}
        assert not names & {"img", "link", "iframe", "object", "embed", "form", "base"}
        assert [len(self.all(name)) for name in ("script", "style", "html", "body")] == [1, 1, 1, 1]
        for name in ("script", "style"):
            digest = hashlib.sha256("".join(self.texts[name]).encode()).digest()
            assert f"{name}-src 'sha256-{base64.b64encode(digest).decode()}'" in self.policy
        assert "default-src 'none'" in self.policy
        assert "unsafe" not in self.policy
        for name, attributes in self.elements:
            for key, value in attributes.items():
                assert not key.startswith("on"), (name, key)
                assert key not in ("style", "src", "srcdoc", "action", "xlink:href"), (name, key)
                assert key != "href" or str(value).startswith("#"), (name, value)
        ids = [str(x["id"]) for _, x in self.elements if "id" in x]
        assert len(set(ids)) == len(ids)
        for link in self.all("a"):
            assert str(link["href"])[1:] in ids, link
        assert not re.search(r"https?://", self.markup)
