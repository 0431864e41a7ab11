# SPDX-License-Identifier: Apache-2.0
"""The run: each side of a piece of work is compared with float32 experts, then all take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jitgen.autotune.measure.clock import require_gpu
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.layer.ours import ARCH, names_of, without_memory
from jitgen.bench.protocol import conditions
from jitgen.bench.runner import attempt, of_every_device
from jitgen.bench.suite import Given, Suite
from jitgen.bench.transformers import NAME
from jitgen.bench.transformers.models import MODELS, REFERENCE, Formats, Model, make, register
from jitgen.bench.transformers.report import SIDES, WORKS, Measured, TransformersReport, Work, limit
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig

_FP8 = "-fp8"
_COMPARED = 128
"""Last tokens of a prompt whose logits are compared."""

_DEVICE = "cuda"


def run(
    models: Sequence[Model],
    works: Sequence[Work],
    *,
    sides: Sequence[str] = SIDES,
    rounds: int = 5,
) -> Iterator[Measured]:
    """
    Yield what was found of each model and piece of work.

    Raises:
        NoDevice: There is no GPU that jitgen has kernels for.
        ToolchainError: transformers is not installed, or older than 5.
    """
    require_gpu(f"the {NAME} suite")
    register()
    for model in models:
        made = make(model, _DEVICE)
        formats = Formats(made)
        for work in works:
            yield measured(model, made, formats, work, sides=sides, rounds=rounds)
        del made, formats
        if _DEVICE == "cuda":
            torch.cuda.empty_cache()


@torch.no_grad()
def measured(
    model: Model,
    made: Any,
    formats: Formats,
    work: Work,
    *,
    sides: Sequence[str] = SIDES,
    rounds: int = 5,
) -> Measured:
    """Check and time the sides of one piece of work."""
    generator = torch.Generator(_DEVICE).manual_seed(work.tokens)
    shape = (work.texts, work.prompt)
    vocabulary = made.config.vocab_size
    ids = torch.randint(0, vocabulary, shape, device=_DEVICE, generator=generator)
    found = Measured(model=model.name, work=work)
    formats.take(REFERENCE, is_fp8=False)
    expected = answered(made, work, ids)
    calls: dict[str, Callable[[], object]] = {}
    for side in (each for each in SIDES if each in sides):

        def add(side: str = side) -> None:
            _take(formats, side)
            error = difference(answered(made, work, ids), expected)
            if not error <= (most := limit(side, found.errors)):
                raise WrongResult(f"{side} is wrong: error {error:.3g} above {most:.3g}")
            found.errors[side] = error
            calls[side] = partial(_done, made, work, ids)

        attempt(side, add, found.missing)
    for side, times in _timed(formats, calls, rounds).items():
        found.rates[side] = work.tokens / times.median
        found.spreads[side] = times.spread
    return found


def answered(made: Any, work: Work, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens (texts, steps), those of the prompt in prefill, and logits after each step."""
    if not work.new:
        kept = min(_COMPARED, work.prompt)
        return ids[:, -kept:], made(ids, logits_to_keep=kept, use_cache=False).logits
    done = _generated(made, work, ids, output_logits=True)
    return done.sequences[:, work.prompt :], torch.stack(done.logits, 1)


def difference(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> float:
    """
    Return how far the logits of a step are from expected ones, as a part of their norm: the median.

    Now and then a router makes another expert of a difference in the last bit, which some steps
    show whoever computes. Where a text goes on with another token, two were as likely as rounding
    decides; the steps that follow have another text and are not compared.

    Raises:
        WrongResult: A step's logits are off by more than their norm.
    """
    (tokens, logits), (expected_tokens, expected_logits) = found, expected
    is_other = (tokens != expected_tokens).long()
    is_compared = is_other.cumsum(-1) - is_other == 0
    kept = is_compared.nonzero(as_tuple=True)
    right = expected_logits[kept].float()
    errors = (logits[kept].float() - right).norm(dim=-1) / right.norm(dim=-1)
    if not float(errors.max()) <= 1:
        raise WrongResult(
            f"the logits of a step are off by {float(errors.max()):.3g} of their norm"
        )
    return float(errors.median())


def kernel_names(model: Model, works: Sequence[Work]) -> Iterator[str]:
    """Yield the kernels that both formats ask for."""
    config = MoEConfig(
        hidden=model.hidden,
        intermediate=model.intermediate,
        experts=model.experts,
        top_k=model.top_k,
    )
    for is_fp8 in (False, True):
        sizes = model.experts, model.intermediate, model.hidden
        weights = without_memory(*sizes, is_fp8=is_fp8)
        chain = Chain(config=config, weights=weights)
        for tokens in dict.fromkeys(tokens for work in works for tokens in work.at_once):
            yield from names_of(chain, tokens)


def _take(formats: Formats, side: str) -> None:
    formats.take(side.removesuffix(_FP8), is_fp8=side.endswith(_FP8))


def _done(made: Any, work: Work, ids: Tensor) -> object:
    if work.new:
        return _generated(made, work, ids)
    return made(ids, logits_to_keep=1, use_cache=False)


def _generated(made: Any, work: Work, ids: Tensor, **options: Any) -> Any:
    return made.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=work.new,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        return_dict_in_generate=True,
        **options,
    )


def _timed(
    formats: Formats, calls: dict[str, Callable[[], object]], rounds: int
) -> dict[str, Times]:
    """Return times of the whole calls on the host's clock, sides in turn, the first not counted."""
    seconds: dict[str, list[float]] = {side: [] for side in calls}
    for turn in range(rounds + 1):
        for side, call in calls.items():
            _take(formats, side)
            _wait()
            start = time.perf_counter()
            call()
            _wait()
            if turn:
                seconds[side].append(time.perf_counter() - start)
    return {side: Times(seconds=tuple(each)) for side, each in seconds.items()}


def _wait() -> None:
    if _DEVICE == "cuda":
        torch.cuda.synchronize()


def _run(
    report: TransformersReport, steps: Sequence[Model], given: Given, _: Callable[[], None]
) -> Iterator[str]:
    for each in run(steps, WORKS, sides=given["sides"] or SIDES, rounds=given["rounds"]):
        report.found.append(each)
        yield each.case
    report.conditions.update(conditions(("transformers", "triton")))


SUITE = Suite(
    name=NAME,
    report=TransformersReport,
    about=f"""
Two layers of real width with random weights: prefill, and generate with a cache, as transformers
does both. Logits are compared with those of float32 experts before anything is timed; tokens a
second are of whole calls on the host's clock, all sides of one piece of work in turn. In FP8 are
the experts alone. Exits 1 if a target is missed or jitgen is left out. Sides: {", ".join(SIDES)}.
""",
    options=("model", "side", "rounds", "kernels"),
    step="piece of work",
    needing="this",
    choices={"model": MODELS, "side": SIDES},
    steps=lambda given: [MODELS[name] for name in dict.fromkeys(given["names"] or MODELS)],
    run=_run,
    new=lambda _: TransformersReport(),
    kernels=lambda steps, _: of_every_device(
        ARCH, lambda: (name for each in steps for name in kernel_names(each, WORKS))
    ),
)
