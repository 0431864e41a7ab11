# SPDX-License-Identifier: Apache-2.0
"""Every block of code in the documentation is run by a test; others say why not, and compile."""

from __future__ import annotations

import ast
import json
import re
import tomllib

import pytest

from jitgen.config.plugins import OPERATIONS
from jitgen.plans import read
from tests import documents

RUN_BY = {
    "README.md": "tests/compile/test_readme.py",
    "docs/emulator-devices.md": "tests/unit/test_devices_docs.py",
    "docs/expert-parallel.md": "tests/compile/test_ranks_cpu.py",
    "docs/fc2.md": "tests/compile/test_documents.py",
    "docs/grouped-gemm.md": "tests/compile/test_readme.py",
    "docs/gradients.md": "tests/compile/test_gradients_docs.py",
    "docs/integrations.md": "tests/compile/test_layer_docs.py",
    "docs/kernel-engineer.md": "tests/compile/test_kernel_engineer_docs.py",
    "docs/layer-operations.md": "tests/compile/test_layer_operations.py",
    "docs/moe-layer.md": "tests/compile/test_layer_docs.py",
    "docs/mxfp4.md": "tests/compile/test_documents.py",
    "docs/prepacked-weights.md": "tests/compile/test_documents.py",
    "docs/blackwell-rtx.md": "tests/compile/test_documents.py",
    "docs/numerics.md": "tests/compile/test_documents.py",
    "docs/plans.md": "tests/compile/test_plans_docs.py",
    "docs/route.md": "tests/compile/test_route_call.py",
    "docs/selection.md": "tests/compile/test_documents.py",
    "docs/torch.md": "tests/compile/test_torch_docs.py",
    "docs/tutorial-model.md": "tests/compile/test_documents.py",
    "docs/tutorial-serving.md": "tests/compile/test_documents.py",
}
"""The test that runs a page's blocks of Python."""

COMPILED = {
    "docs/fleet.md": "its calls are those of a job of several ranks and of a server's registry of "
    "metrics: tests/service/test_ranks.py and tests/unit/test_metrics.py make them",
    "docs/verify.md": "a part of examples/06_verify_your_own_kernel.py, which "
    "tests/compile/test_examples.py runs",
}
"""Why a page's blocks of Python are not run as they stand."""

LANGUAGES = {"", "console", "json", "py", "python", "sh", "text", "toml", "yaml"}
PAGES = documents.pages()


def test_every_page_with_code_is_listed() -> None:
    with_code = {page for page in PAGES if documents.blocks(page, "python")}

    assert with_code == RUN_BY.keys() | COMPILED.keys()


@pytest.mark.parametrize("page", RUN_BY)
def test_the_test_reads_the_page(page: str) -> None:
    source = (documents.ROOT / RUN_BY[page]).read_text(encoding="utf-8")

    assert page.removeprefix("docs/") in source
    assert "exec(" in source or "subprocess" in source


@pytest.mark.parametrize("page", COMPILED)
def test_the_others_are_python(page: str) -> None:
    for block in documents.blocks(page, "python"):
        compile(block, page, "exec")
    for word in COMPILED[page].replace(",", " ").split():
        if "/" in word:
            assert (documents.ROOT / word).is_file()


def test_the_example_holds_what_the_page_shows() -> None:
    """docs/verify.md shows the cases of the example, perhaps in other words: the same calls."""

    def calls(source: str) -> set[str]:
        found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
        (cases,) = (node for node in found if node.name == "verify_cases")
        return {
            keyword.arg or ""
            for node in ast.walk(cases)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Case"
            for keyword in node.keywords
        }

    (block,) = documents.blocks("docs/verify.md", "python")
    example = (documents.ROOT / "examples/06_verify_your_own_kernel.py").read_text(encoding="utf-8")

    assert calls(block) >= calls(example) != set()


@pytest.mark.parametrize("page", PAGES)
def test_other_languages_are_read(page: str) -> None:
    for block in documents.blocks(page, "toml"):
        tomllib.loads(block)
    for block in documents.blocks(page, "json"):
        json.loads(block)

    assert {name for name, _ in documents.fences(page)} <= LANGUAGES


def test_a_plan_s_keys_are_listed_by_operation() -> None:
    """docs/plans.md lists for every operation exactly the keys that a plan may have."""
    rows = dict(
        re.findall(r"^\| `(\w+)` \| (`.*`) \|$", documents.text("docs/plans.md"), re.MULTILINE)
    )
    for name in OPERATIONS.names():
        keys = set(re.findall(r"`(\w+)`", rows[name]))

        assert keys | {read.ROWS} == set(read.keys_of(name)), name
