# SPDX-License-Identifier: Apache-2.0
"""Where vLLM's files are; vLLM itself is never imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from jitgen.bench.peers import Unavailable


def folder_of_vllm() -> Path:
    """
    Return the folder of vLLM, without importing it: its parts are used alone.

    Raises:
        Unavailable: vLLM is not installed.
    """
    spec = importlib.util.find_spec("vllm")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise Unavailable("vllm is not installed, nor the files of it that are used")
    return Path(places[0])
