# SPDX-License-Identifier: Apache-2.0
"""
Everything made of tensors that is kept beyond a call is listed here, with how its place finds out
that the tensors have changed, or that their memory is in use.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import jitgen

ROOT = Path(jitgen.__file__).parent

_ONE_CALL = "of one call, or of the step of autograd that its context belongs to"
_LEASED = "memory: of a stream, under a lock; what finds it in use has memory of its own"
_ONE_READING = "of one reading of a checkpoint"
_NUMBERS = "sizes, names and settings: no tensor"
_CONFIGS = "configs that a tracer's graph holds: no tensor"

KEPT = {
    "integrations/sizes.py _seen": "sizes whose kernels are in the store: no tensor",
    "integrations/sglang_experts.py chains": "references: Places of weights and scales",
    "integrations/sglang_ranks.py _ours()": "a function, which keeps the chains above",
    "integrations/sglang_ranks.py self.runner_backend": _NUMBERS,
    "integrations/sglang_ranks.py self._first": _NUMBERS,
    "integrations/sglang_ranks.py self._local_experts": _NUMBERS,
    "integrations/sglang_ranks.py self._sent": _NUMBERS,
    "integrations/sglang_ranks.py self._wires": "memory that peers see, in the order of a stream",
    "integrations/transformers_chains.py _kept": "references: Places of weights and scales",
    "integrations/transformers_chains.py _held": "copies that were asked for: Versions of weights",
    "integrations/vllm_experts.py self._kept": "references: Places of weights and scales",
    "integrations/vllm_experts.py _told": "names of layers that the log has named: no tensor",
    "integrations/vllm_experts.py self.sizes": _NUMBERS,
    "integrations/vllm_ranks.py self._wires": "memory that peers see, in the order of a stream",
    "integrations/wires.py _wires": "the same",
    "integrations/vllm_ranks.py self.moe_config": _NUMBERS,
    "integrations/vllm_ranks.py self.quant_config": "references of vLLM's, which are not read",
    "torch/operands.py _of_arch()": "a number of each target",
    "layer/checkpoints/encodings/protocol.py self.roles": _NUMBERS,
    **{
        f"layer/checkpoints/matrices.py self.{name}": _ONE_READING
        for name in (
            *("_between", "_biases", "_columns", "_dtype", "_encoding", "_family", "_hidden"),
            "_part",
            *("_w13", "_w2"),
        )
    },
    **{
        f"layer/checkpoints/destinations.py self.{name}": _ONE_READING
        for name in (
            *("_factor", "_form", "_kept", "_layout", "_overall", "_part", "_scale"),
            *("_scale_dtype", "_shape", "_spreads", "_unit", "_values"),
        )
    },
    "layer/early.py found": _ONE_CALL,
    "layer/early.py session": _ONE_CALL,
    **{
        f"layer/gradients.py ctx.{name}": _ONE_CALL
        for name in (
            *("activation", "expected_m", "groups", "kept", "names", "needs", "numerics"),
            *("passes", "session"),
        )
    },
    "layer/gradients.py operation()": "an operation of torch: no tensor",
    "layer/bound.py layer._made": "references: bound anew where a buffer is another, see _chain",
    "layer/bound.py self._made": "the same",
    "layer/module.py self._workspace": _LEASED,
    "layer/module.py self._wire": "memory that peers see, written in the order of a stream",
    "layer/module.py self.config": _NUMBERS,
    "layer/module.py self._number": _NUMBERS,
    "layer/module.py self.lora": "references: what is written to their tensors counts at once",
    "layer/module.py self.max_tokens": _NUMBERS,
    "layer/ranks.py LAYERS": "references that keep no layer: each knows its tensors",
    "layer/ranks.py _numbers": _NUMBERS,
    "layer/ranks_compiled.py operation()": "an operation of torch: no tensor",
    "layer/workspace.py NEW": "no memory",
    **{
        f"layer/workspace.py self.{name}": _LEASED
        for name in ("_blocks", "_of_stream", "_views", "lock", "_lock", "results")
    },
    "layer/workspace.py self._order": "numbers that are written once, and the device waited for",
    "layer/workspace.py self._exchange": "written by launches alone, which count themselves in it",
    "layer/workspace.py self.exchange": _LEASED,
    **{
        f"layer/workspace.py self.{name}": _NUMBERS
        for name in ("_device", "_sizes", "_top_k", "max_tokens", "tokens")
    },
    "layer/workspace.py self.rows": _LEASED,
    "ops/explicit_config.py _read": _CONFIGS,
    "ops/explicit_config.py of_graph()": _CONFIGS,
    "ops/call.py self.public": "a function",
    "ops/grouped_gemm/call.py _prepacked": "a function",
    "ops/activation_quantize/dispatch.py _rows()": _NUMBERS,
    "ops/grouped_gemm/dispatch.py _unit_scales": "ones, written once, and the device waited for",
    "ops/grouped_gemm/draws.py self._options": "of tests and benchmarks",
    "ops/grouped_gemm/draws.py self.is_exact": "of tests and benchmarks",
    "ops/grouped_gemm/draws.py self.reach": "of tests and benchmarks",
    **{
        f"ops/guards.py self.{name}": _NUMBERS
        for name in ("_kinds", "_sizes", "_strides", "_thread")
    },
    "ops/tracing/compiled.py _configs": _CONFIGS,
    **{
        f"ops/tracing/library.py self.{name}": "operations of torch and names: no tensor"
        for name in (
            "_call",
            "_gradients",
            "_names",
            "_old",
            "_sizes",
            "operation",
            "operation_out",
            "operations",
        )
    },
    **{
        f"ops/tracing/gradients.py ctx.{name}": _ONE_CALL
        for name in (
            *("dtype", "expected_m", "groups", "names", "needs_bias", "num_groups", "numerics"),
            "session",
        )
    },
    "ops/tracing/nodes.py ctx.op": _ONE_CALL,
    **{
        f"ops/tracing/layer_gradients.py ctx.{name}": _ONE_CALL
        for name in (
            *("groups", "is_hashed", "kept", "names", "needs", "options", "session", "shape"),
        )
    },
    "ops/versions.py self._marks": "Versions themselves",
    "ops/versions.py self._places": "Places themselves",
    "formats/__init__.py find_format()": _NUMBERS,
    "formats/prepacked_scales.py exponents": _ONE_CALL,
    **{
        f"formats/{name}.py FORMAT": _NUMBERS
        for name in ("block128", "mx32", "nv16", "row", "tensor")
    },
}
"""A new place belongs here, with `jitgen.ops.versions` or a reason why it needs none."""

FOLDERS = ("integrations", "torch", "layer", "ops", "formats")
APART = ("samples.py", "reference.py")
"""Of tests and benchmarks."""


def kept(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield what a module fills while it runs: empty containers, attributes, memories of calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            if any("cache" in ast.unparse(each) for each in node.decorator_list):
                yield f"{name} {node.name}()"
            if any(isinstance(each, ast.FunctionDef) for each in node.body):  # which may fill it
                yield from (f"{name} {each}" for each in _empty(node.body))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield f"{name} {ast.unparse(node)}"
        elif isinstance(node, ast.Global):
            yield from (f"{name} {each}" for each in node.names)
    yield from (f"{name} {each}" for each in _empty(tree.body))


def _empty(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        value = node.value
        is_empty = (isinstance(value, ast.Dict) and not value.keys) or (
            isinstance(value, (ast.List, ast.Set)) and not value.elts
        )
        if is_empty or (isinstance(value, ast.Call) and not value.args and not value.keywords):
            yield from (ast.unparse(target) for target in targets)


def test_every_place_is_known() -> None:
    found = set()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.name.endswith(APART):
                continue
            name = path.relative_to(ROOT).as_posix()
            found |= set(kept(name, ast.parse(path.read_text(encoding="utf-8"))))

    assert found == KEPT.keys() | {
        # names of formats, and no tensor
        "integrations/vllm.py told",
    }


def test_places_are_found() -> None:
    """Of every kind that the search knows."""
    text = """
_a = {}
_b: dict[int, int] = WeakKeyDictionary()
_c = {1: 2}

@cache
def made(): ...

def outer():
    d = set()
    def inner(): d.add(1)

class Layer:
    def run(self): self.e = 1
"""
    assert set(kept("m", ast.parse(text))) == {"m _a", "m _b", "m made()", "m d", "m self.e"}
