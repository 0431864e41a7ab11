# SPDX-License-Identifier: Apache-2.0
"""
Measures models: each implementation is first compared with float32 experts, then all are timed in
turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from jitgen.autotune.measure.clock import require_gpu
from jitgen.autotune.measure.errors import WrongResult
from jitgen.autotune.measure.times import Times
from jitgen.bench.layer.ours import ARCH, names_of, without_memory
from jitgen.bench.protocol import Record, Row, conditions
from jitgen.bench.report import OURS, Report, Table
from jitgen.bench.runner import attempt, of_every_device
from jitgen.bench.suite import Given, Suite
from jitgen.bench.transformers import NAME
from jitgen.bench.transformers.models import MODELS, REFERENCE, Formats, Model, make, register
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig
from jitgen.support.frozen import frozen

EAGER, GROUPED = "eager", "grouped_mm"
OURS_FP8, GROUPED_FP8 = "jitgen-fp8", "grouped_mm-fp8"

SIDES = (EAGER, GROUPED, OURS, GROUPED_FP8, OURS_FP8)
"""Every side, transformers' own first: the errors of ours are held against those."""

FP8_LIMIT, BF16_LIMIT = 0.08, 0.05
"""Largest errors of FP8 experts, which quantise tokens, and of others."""

OF_GROUPED = 1.5
"""Largest error of ours in bfloat16, relative to that of grouped_mm."""


@frozen
class Work(Record):
    """
    What a model has to do: read prompts, and generate tokens.

    Attributes:
        texts: Number of texts in the batch.
        prompt: Number of tokens in the prompt of each text.
        new: Number of tokens that are generated for each text; 0: only prefill is measured.
    """

    texts: int
    prompt: int
    new: int = 0

    def __str__(self) -> str:
        """Return the work's name in tables: ``generate 32 x 32 after 128``."""
        if not self.new:
            return f"prefill {self.texts} x {self.prompt}"
        return f"generate {self.texts} x {self.new} after {self.prompt}"

    @property
    def tokens(self) -> int:
        """Tokens that a rate counts: the generated ones, or those of the prompts."""
        return self.texts * (self.new or self.prompt)

    @property
    def at_once(self) -> tuple[int, ...]:
        """
        Numbers of tokens that a layer computes in one call: in prefill, and for each new token.
        """
        prefill = self.texts * self.prompt
        return (prefill, self.texts) if self.new else (prefill,)


WORKS = (
    Work(texts=1, prompt=128, new=32),
    Work(texts=32, prompt=128, new=32),
    Work(texts=1, prompt=4096),
)


@frozen
class Measured(Record):
    """
    The results of one model with one piece of work.

    Attributes:
        model: Name of the model.
        work: What the model had to do.
        rates: Tokens a second of each side, from medians.
        spreads: Difference of the longest and the shortest time of each side, relative to the
            median.
        errors: Distance of each side's logits from those of float32 experts, relative to their
            norm: the median over the tokens.
        missing: Sides without a result, each with the reason.
    """

    JSON: ClassVar[str] = "model work tokens_per_s=rates spreads errors missing"

    model: str
    work: Work
    rates: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def case(self) -> str:
        """Name of the model and its work in tables."""
        return f"{self.model}, {self.work}"


@dataclass(slots=True, kw_only=True)
class TransformersReport(Report):
    """Report of a run of the transformers suite."""

    SUITES: ClassVar[tuple[str, ...]] = (NAME,)
    JSON: ClassVar[str] = "conditions cases=found"

    found: list[Measured] = field(default_factory=list)

    def targets(self) -> Iterator[Row]:
        """
        Yield the speed of jitgen, in bfloat16 and in FP8, relative to grouped_mm in bfloat16, which
        must be at least 1.
        """
        for each in self.found:
            for side in (OURS, OURS_FP8):
                if {OURS, GROUPED, side} <= each.rates.keys():
                    yield Row(
                        suite=NAME,
                        what=f"{side} over {GROUPED}: {each.case}",
                        value=each.rates[side] / each.rates[GROUPED],
                        unit="x",
                        budget=1.0,
                        is_rate=True,
                    )

    def tables(self) -> Iterator[Table]:
        """Yield a table of tokens per second with the errors."""
        yield Table(
            title="tokens a second, and how far logits are from those of float32 experts",
            columns=("model", "work", *SIDES),
            rows=tuple(
                (each.model, str(each.work), *(_cell(each, side) for side in SIDES))
                for each in self.found
            ),
            texts=("model", "work"),
        )

    def remarks(self) -> Iterator[str]:
        """
        Yield a line for each side that was left out: the model, the work, the side and the reason.
        """
        for each in self.found:
            for side, why in each.missing.items():
                yield f"{each.case}: {side} is left out: {why}"


def _cell(found: Measured, side: str) -> str:
    if side not in found.rates:
        return "-"
    return f"{found.rates[side]:,.0f} ({found.errors[side]:.1e})"


def limit(side: str, errors: dict[str, float]) -> float:
    """
    Return the largest allowed error of a side: for jitgen's in bfloat16 it depends on the error of
    grouped_mm.
    """
    if side in {OURS_FP8, GROUPED_FP8}:
        return FP8_LIMIT
    return OF_GROUPED * errors[GROUPED] if side == OURS and GROUPED in errors else BF16_LIMIT


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
    Yield the results of each model and piece of work.

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
    """Check and time the sides for one `work`."""
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
    """
    Return the tokens (texts, steps), which for prefill are the last ones of the prompt, and the
    logits after each step.
    """
    if not work.new:
        kept = min(_COMPARED, work.prompt)
        return ids[:, -kept:], made(ids, logits_to_keep=kept, use_cache=False).logits
    done = _generated(made, work, ids, output_logits=True)
    return done.sequences[:, work.prompt :], torch.stack(done.logits, 1)


def difference(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> float:
    """
    Return the distance of logits from the expected ones, relative to their norm: the median over
    the steps.

    It is a median because in some steps of every implementation a difference in the last bit makes
    a router choose another expert. If a text continues with another token, rounding has decided
    between two equally likely tokens; the following steps then have another text and are not
    compared.

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
    """Yield the names of the kernels that the bfloat16 model and the FP8 model need."""
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
    """
    Return the times of whole calls by the host's clock; sides are timed in turn, and the first
    round does not count.
    """
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
    choices={"model": MODELS, "side": SIDES},
    steps=lambda given: [MODELS[name] for name in dict.fromkeys(given["names"] or MODELS)],
    run=_run,
    new=lambda _: TransformersReport(),
    kernels=lambda steps, _: of_every_device(
        ARCH, lambda: (name for each in steps for name in kernel_names(each, WORKS))
    ),
)
