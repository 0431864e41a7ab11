# SPDX-License-Identifier: Apache-2.0
"""
Stands for a serving engine in the examples: it is ready when all kernels of its plan are loaded.

    PLAN=deepseek-v3 TARGET=sm_90a PORT=8000 python server.py

``/livez`` says that the process runs, ``/readyz`` that it may get requests, ``/kernels`` where each
kernel came from. A kernel that is missing ends the process before it is ready, since it may not
compile: with `JITGEN_ON_MISS=error` no request can ever wait for a compile.
"""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jitgen
from jitgen import plans

loaded: dict[str, str] = {}
ready = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answer probes."""

    def do_GET(self) -> None:
        """Answer one of three paths."""
        if self.path == "/livez":
            self.answer(200, {"alive": True})
        elif self.path == "/readyz":
            self.answer(200 if ready.is_set() else 503, {"kernels": len(loaded)})
        elif self.path == "/kernels":
            self.answer(200, loaded)
        else:
            self.answer(404, {"paths": ["/livez", "/readyz", "/kernels"]})

    def answer(self, status: int, document: object) -> None:
        """Send a JSON document."""
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing about probes."""


def load(plan: str, target: str) -> None:
    """Load every kernel that the plan may call on this machine."""
    jitgen.freeze()
    for config in plans.configs(plans.load(plan), target):
        kernel = jitgen.get_kernel(config, target)
        loaded[kernel.name] = kernel.tier


def main() -> None:
    """Answer probes while the kernels are loaded, and from then on."""
    server = ThreadingHTTPServer(("", int(os.environ.get("PORT", "8000"))), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    load(os.environ["PLAN"], os.environ["TARGET"])
    ready.set()
    threading.Event().wait()


if __name__ == "__main__":
    main()
