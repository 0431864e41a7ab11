# SPDX-License-Identifier: Apache-2.0
"""
The kernels that the GPU tests run: what may be chosen on the GPU's target, and some of everything
else that its family has. Prewarm them on any machine: python -m tests.gpu.configs --arch sm_100a.
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import replace
from typing import Any

import torch

import jitgen
from jitgen import plans
from jitgen.bench.grouped import KINDS
from jitgen.bench.runner import of_every_device
from jitgen.bench.transformers.models import MODELS
from jitgen.bench.transformers.run import WORKS, kernel_names
from jitgen.config import Arch, BLayout, Config, DType, Layout, Numerics, ScaleGranularity
from jitgen.config.activation_quantize import (
    Activation,
    ActivationQuantizeConfig,
    ActivationQuantizeProblem,
)
from jitgen.config.format import IN_ATOMS, Format
from jitgen.config.grouped_gemm import GroupedGemmConfig, GroupedGemmProblem, Operands
from jitgen.config.grouped_gemm_wgrad import GroupedGemmWgradConfig, GroupedGemmWgradProblem
from jitgen.config.moe_fc2_dense import MoEFc2DenseConfig, MoEFc2DenseProblem
from jitgen.config.quantize import QuantizeConfig, QuantizeProblem
from jitgen.config.route import RouteConfig
from jitgen.config.unpack_weights import UnpackWeightsConfig, UnpackWeightsProblem
from jitgen.formats.unpacked import LAYOUTS
from jitgen.layer import plan as layer_plan
from jitgen.layer.chain import Chain
from jitgen.layer.config import MoEConfig
from jitgen.layer.weights import ExpertWeights
from jitgen.ops.grouped_gemm import prepacked_algorithms
from jitgen.runtime.devices import Emulated
from jitgen.runtime.session import Session, current
from jitgen.targets.legality import rules, target
from tests.candidates import candidates
from tests.invariance import allowed
from tests.moe_cases import FORMATS, MASKED_ROWS, make
from tests.public_calls import CALLS


def arch_of_gpu() -> Arch:
    """Return the target of the GPU at hand; Hopper's where there is none, and all is skipped."""
    if torch.cuda.is_available():
        return Arch.of_capability(*torch.cuda.get_device_capability()) or Arch.SM_90A
    return Arch.SM_90A


def of_family(arch: Arch) -> Any:
    """Return the module of the family's kernels: CONFIGS, OF_OTHER_TYPES, ACCUMULATOR_BITS."""
    return importlib.import_module(f"tests.gpu.{target(arch).family}")


def menu(arch: Arch) -> dict[tuple[Layout, DType], GroupedGemmConfig]:
    """Return a kernel for each layout and type of result that the selector can choose as well."""
    return {
        (layout, out_dtype): candidates(arch, layout, Operands(out_dtype=out_dtype))[0]
        for layout in Layout
        for out_dtype in (DType.F16, DType.F32)
    }


def choices(arch: Arch) -> list[GroupedGemmConfig]:
    """Return everything that may be chosen for the types that `jitgen bench` checks."""
    return [
        config
        for layout in Layout
        for dtype, scales in KINDS
        for config in candidates(
            arch, layout, Operands(a_dtype=dtype, b_dtype=dtype, scale_granularity=scales)
        )
    ]


def prepacked(arch: Arch) -> list[GroupedGemmConfig]:
    """Return the kernels for prepacked weights; none where a target has no such kernels."""
    return getattr(of_family(arch), "PREPACKED", [])


def fc2(arch: Arch) -> tuple[MoEFc2DenseConfig, ...]:
    """Return what may be chosen for `moe_fc2_dense`; nothing where a target has no kernel."""
    if "moe_fc2_dense" not in target(arch).operations:
        return ()
    problem = MoEFc2DenseProblem(groups=256, m=64, n=7168, k=256)
    kinds = [replace(problem, a_dtype=dtype, scale_granularity=scales) for dtype, scales in KINDS]
    return tuple(config for kind in kinds for config in rules(arch, problem.op).candidates(kind))


def wgrad(arch: Arch) -> tuple[GroupedGemmWgradConfig, ...]:
    """Return what may be chosen for `grouped_gemm_wgrad`; nothing where there is no kernel."""
    if "grouped_gemm_wgrad" not in target(arch).operations:
        return ()
    problems = (
        GroupedGemmWgradProblem(
            layout=layout, groups=8, m=8192, n=4096, k=2048, a_dtype=dtype, out_dtype=out_dtype
        )
        for layout in (Layout.RAGGED, Layout.MASKED)
        for dtype in (DType.BF16, DType.F16)
        for out_dtype in (dtype, DType.F32)
    )
    return tuple(config for each in problems for config in rules(arch, each.op).candidates(each))


def drop_ins(arch: Arch) -> list[GroupedGemmConfig]:
    """
    Return the products of the tests of `jitgen.torch`, whose results have their operands' type;
    nothing but on Hopper.
    """
    if arch != Arch.SM_90A:
        return []
    return [
        config
        for layout in (Layout.RAGGED, Layout.MASKED)
        for dtype in (DType.BF16, DType.F16)
        for b_layout in (BLayout.PLAIN, BLayout.N_MAJOR)
        for config in candidates(
            arch,
            layout,
            replace(_BF16, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype, b_layout=b_layout),
        )
    ]


def trained(arch: Arch) -> list[Any]:
    """
    Return what the tests of transformers' experts ask for besides `drop_ins` and `wgrad`; nothing
    but on Hopper.
    """
    if arch != Arch.SM_90A:
        return []
    from tests.transformers_experts import EXPERTS, HIDDEN, INTERMEDIATE, TOKENS, TOP_K

    weights = ExpertWeights(
        w13=torch.empty(EXPERTS, 2 * INTERMEDIATE, HIDDEN, dtype=torch.bfloat16, device="meta"),
        w2=torch.empty(EXPERTS, HIDDEN, INTERMEDIATE, dtype=torch.bfloat16, device="meta"),
    )
    config = MoEConfig(hidden=HIDDEN, intermediate=INTERMEDIATE, experts=EXPERTS, top_k=TOP_K)
    chain = Chain(config=config, weights=weights)
    return [*plans.configs(layer_plan.of(chain, TOKENS, arch, name="experts"), arch)]


def quantized(arch: Arch) -> list[QuantizeConfig]:
    """Return everything that may be chosen for `quantize`; nothing where there is no kernel."""
    if "quantize" not in target(arch).operations:
        return []
    return [
        config
        for layout in Layout
        for form in IN_ATOMS
        for config in rules(arch, "quantize").candidates(
            QuantizeProblem(layout=layout, groups=8, m=8192, k=7168, format=form)
        )
    ]


_BF16 = Operands(a_dtype=DType.BF16, b_dtype=DType.BF16, scale_granularity=ScaleGranularity.TENSOR)
_MXFP4 = Operands(
    b_dtype=DType.E2M1,
    scale_granularity=ScaleGranularity.MX32,
    a_scale_granularity=ScaleGranularity.ROW,
)
INVARIANT: dict[str, Operands] = {
    "block128": Operands(),
    "bf16": _BF16,
    "row": Operands(scale_granularity=ScaleGranularity.ROW),
    "nmajor": replace(_BF16, b_layout=BLayout.N_MAJOR),
    "exact1": replace(_MXFP4, b_layout=BLayout.EXACT1),
    "folded1": replace(_MXFP4, b_layout=BLayout.FOLDED1),
    "wide1": replace(
        _MXFP4,
        a_dtype=DType.BF16,
        a_scale_granularity=ScaleGranularity.NONE,
        b_layout=BLayout.WIDE1,
    ),
}
"""Types whose rows are compared, of all layouts and candidates."""


def biased(arch: Arch, types: Operands) -> list[GroupedGemmConfig]:
    """
    Return the kernels that invariant numerics allow of `types` with a bias and float32 results, in
    which no rounding hides a difference.
    """
    return allowed(arch, replace(types, out_dtype=DType.F32), bias=True)


def invariant(arch: Arch) -> list[GroupedGemmConfig]:
    """
    Return everything that invariant numerics allow of the types in `INVARIANT`, and of each what
    `biased` returns.
    """
    return [
        config
        for types in INVARIANT.values()
        for config in (*allowed(arch, types), *biased(arch, types))
    ]


MANY_ROWS = GroupedGemmProblem(
    layout="ragged",
    groups=8,
    m=8 * 1280,
    n=1032,
    k=1568,
    b_dtype="e2m1",
    scale_granularity="mx32",
    a_scale_granularity="row",
    b_layout="exact1",
)
"""A call with prepacked weights for which they are unpacked first."""


def unpacking(arch: Arch) -> list[UnpackWeightsConfig]:
    """Return everything that may be chosen for `unpack_weights`; nothing without a kernel."""
    if "unpack_weights" not in target(arch).operations:
        return []
    sizes = {"groups": MANY_ROWS.groups, "m": MANY_ROWS.groups * MANY_ROWS.n, "k": MANY_ROWS.k}
    return [
        config
        for b_layout in LAYOUTS
        for config in rules(arch, "unpack_weights").candidates(
            UnpackWeightsProblem(**sizes, b_layout=b_layout)
        )
    ]


def of_many_rows(arch: Arch) -> list[Config]:
    """Return the kernels of calls with prepacked weights of many rows, with a bias and without."""
    if not unpacking(arch):
        return []
    kinds = [
        replace(MANY_ROWS, b_layout=b_layout, bias=bias)
        for b_layout in LAYOUTS
        for bias in (False, True)
    ]
    return [
        config
        for kind in kinds
        for device in target(arch).devices
        for config in prepacked_algorithms.kernels(kind, arch, jitgen.select, device.name)
    ]


ARCH = arch_of_gpu()
UNPACK: list[UnpackWeightsConfig] = unpacking(ARCH)
ACCUMULATOR_BITS: dict[DType, int] = of_family(ARCH).ACCUMULATOR_BITS
CONFIGS: list[GroupedGemmConfig] = list(dict.fromkeys([*of_family(ARCH).CONFIGS, *choices(ARCH)]))
PREPACKED: list[GroupedGemmConfig] = prepacked(ARCH)
OF_OTHER_TYPES: list[GroupedGemmConfig] = of_family(ARCH).OF_OTHER_TYPES
OF_MENUS = menu(ARCH)


def depth(config: GroupedGemmConfig, k: int) -> int:
    """
    Return a K of as many bytes as `k` values of FP8, where values are smaller; of operands that
    differ a K that is no less and that they have in multiples.
    """
    types = config.operands
    if types.a_dtype is not types.b_dtype:
        return -(-k // 128) * 128
    return k * 2 if types.a_dtype.bits == 4 else k


def routed(arch: Arch) -> list[RouteConfig]:
    """Return every kernel of `route` that its plan may choose, and one of each with PDL."""
    every = plans.configs(plans.load("route"), arch)
    chosen = [config for config in every if isinstance(config, RouteConfig)]
    of_tiling = {config.tiling: config for config in chosen}
    early = (replace(each, tiling=replace(key, use_pdl=True)) for key, each in of_tiling.items())
    return [*chosen, *early]


def layers(arch: Arch) -> list[Any]:
    """Return the kernels of layers of experts in every format; nothing but on Hopper."""
    if arch != Arch.SM_90A:
        return []
    made = (make(form) for form in FORMATS)
    every = (
        jitgen.MoELayer(replace(case.config, numerics=numerics), case.weights).configs(
            arch, 700, masked=MASKED_ROWS
        )
        for case in made
        for numerics in Numerics
    )
    return [config for configs in every for config in configs]


def called(arch: Arch) -> list[Any]:
    """Return the kernels of a call of every public function, and of their gradients."""
    if arch != Arch.SM_90A:
        return []
    found: list[Any] = []

    def nothing(config: Any) -> Any:
        found.append(config)
        return lambda *_: None

    emulated = Emulated(arch=arch, num_sms=132, function=nothing)
    with Session.emulating(emulated, current.get()):
        for call in (each for each in CALLS if each.is_on_hopper):
            tensors = call.tensors("cpu")
            call.run(tensors)
            for name in call.differentiable:
                tensors[name].requires_grad_()
            if call.differentiable:
                call.run(tensors).sum().backward()
    return found


def models(arch: Arch) -> list[Config]:
    """Return the kernels of the models of `jitgen bench transformers`; nothing but on Hopper."""
    if arch != Arch.SM_90A:
        return []
    names = of_every_device(
        arch, lambda: (name for model in MODELS.values() for name in kernel_names(model, WORKS))
    )
    return [Config.parse(name)[0] for name in names]


def of_every_group(arch: Arch) -> list[ActivationQuantizeConfig]:
    """Return kernels of activations whose numbers differ from group to group."""
    words = [
        (Layout.RAGGED, Format.BLOCK128, Activation.SWIGLU_CLAMP),
        (Layout.RAGGED, Format.NONE, Activation.SWIGLU_OAI),
        (Layout.MASKED, Format.ROW, Activation.SWIGLU_BIAS),
        (Layout.CONTIGUOUS, Format.BLOCK128, Activation.SWIGLU_STEP),
    ]
    problems = (
        ActivationQuantizeProblem(
            layout=layout,
            groups=1,
            m=512,
            n=2048,
            scale_granularity=form,
            activation=activation,
            per_group=True,
        )
        for layout, form, activation in words
    )
    return [rules(arch, each.op).candidates(each)[0] for each in problems]


def main() -> None:
    """Prewarm what the tests and the suites of `jitgen bench` run on a target."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--arch", default=str(ARCH), help="a GPU target")
    arch = Arch.parse(parser.parse_args().arch)
    named = [plans.configs(plans.load(name), arch) for name in ("deepseek-v3", "swiglu")]
    wanted = [
        *of_family(arch).CONFIGS,
        *menu(arch).values(),
        *choices(arch),
        *prepacked(arch),
        *of_every_group(arch),
        *fc2(arch),
        *wgrad(arch),
        *drop_ins(arch),
        *trained(arch),
        *quantized(arch),
        *routed(arch),
        *layers(arch),
        *called(arch),
        *models(arch),
        *unpacking(arch),
        *of_many_rows(arch),
        *invariant(arch),
    ]
    every = dict.fromkeys([*wanted, *(config for configs in named for config in configs)])
    report = jitgen.prewarm(list(every), arch=arch)
    print(*(f"{row.state} {row.name} {row.error}" for row in report.rows), sep="\n")


if __name__ == "__main__":
    main()
