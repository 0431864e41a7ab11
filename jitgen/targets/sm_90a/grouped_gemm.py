# SPDX-License-Identifier: Apache-2.0
"""
Rules of sm_90a for the grouped GEMM: see `jitgen.targets.protocol.Rules`.

Kernels for weights in their original layout and kernels for prepacked weights are two families,
each with separate rules, candidates, costs and templates. The layout of b decides which family is
used. Kernels for one group of few rows are a third one, whose candidates are among those of the
first, as they serve some of its problems.
"""

from __future__ import annotations

from collections.abc import Iterator

from jitgen.config import BLayout
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem
from jitgen.targets.gemm import GemmRules
from jitgen.targets.protocol import Candidate, Derived, Device, Template
from jitgen.targets.sm_90a.fp4_gemm import Fp4Gemm
from jitgen.targets.sm_90a.one_group import OneGroupGemm
from jitgen.targets.sm_90a.plain import ONE_GROUP, PlainGemm

_PLAIN, _FP4 = PlainGemm(), Fp4Gemm()
_FAMILIES: dict[BLayout, PlainGemm | Fp4Gemm] = {
    BLayout.PLAIN: _PLAIN,
    BLayout.N_MAJOR: _PLAIN,
    BLayout.EXACT1: _FP4,
    BLayout.FOLDED1: _FP4,
    BLayout.WIDE1: _FP4,
}


class GroupedGemm(GemmRules):
    """The rules of all families of kernels as one object."""

    arch = "sm_90a"
    generation = PlainGemm.generation
    row_edges = PlainGemm.row_edges
    sums = PlainGemm.sums
    space = PlainGemm.space._replace(prepacked=Fp4Gemm.space.prepacked)  # of both families
    spaces = (PlainGemm.space, Fp4Gemm.space)

    def family_of(self, problem: GroupedGemmProblem) -> PlainGemm | Fp4Gemm:
        """Return the rules of the kernels that serve `problem`."""
        return _of(problem)

    def derive(self, config: GroupedGemmConfig) -> Derived:
        """Return the numbers that follow from `config`, or raise the first Refusal."""
        return _family(config).derive(config)

    def nearest(self, config: GroupedGemmConfig) -> GroupedGemmConfig | None:
        """Return the legal config nearest to a refused one; None if there is none."""
        return _family(config).nearest(config)

    def configs(self) -> Iterator[GroupedGemmConfig]:
        """Yield every config of the target's space, legal or not."""
        yield from _PLAIN.configs()
        yield from _FP4.configs()

    def candidates(self, problem: GroupedGemmProblem) -> tuple[GroupedGemmConfig, ...]:
        """Return the candidate configs for `problem`; none if no kernel serves it."""
        return _of(problem).candidates(problem)

    def predict(
        self, problem: GroupedGemmProblem, config: GroupedGemmConfig, device: Device, num_sms: int
    ) -> Candidate:
        """Estimate the time of `config` for `problem` on `num_sms` SMs of `device`."""
        return _family(config).predict(problem, config, device, num_sms)

    def confidence_note(self, problem: GroupedGemmProblem, device: Device) -> str:
        """Return a note where the cost model was not fitted, else an empty text."""
        return _of(problem).confidence_note(problem, device)

    def templates(self) -> tuple[Template, ...]:
        """Return the templates of all families."""
        return (*_PLAIN.templates(), *_FP4.templates(), *ONE_GROUP.templates())

    def check_sizes(self, problem: GroupedGemmProblem) -> None:
        """Raise a Refusal where kernels cannot take the sizes of `problem`."""
        _of(problem).check_sizes(problem)


def _family(config: GroupedGemmConfig) -> PlainGemm | Fp4Gemm | OneGroupGemm:
    is_one = config.schedule.one_group and not config.operands.b_layout.is_prepacked
    return ONE_GROUP if is_one else _of(config)


def _of(asked: GroupedGemmConfig | GroupedGemmProblem) -> PlainGemm | Fp4Gemm:
    return _FAMILIES[asked.operands.b_layout]
