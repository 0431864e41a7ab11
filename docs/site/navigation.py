# SPDX-License-Identifier: Apache-2.0
"""Who reads which page: the site's menu, by the three kinds of readers."""

from __future__ import annotations

from collections.abc import Iterator

HOME = "index.md"

PAGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Start",
        (
            "README.md",
            "docs/install.md",
            "docs/compatibility.md",
            "docs/settings.md",
            "docs/costs.md",
            "docs/comparison.md",
            "docs/troubleshooting.md",
        ),
    ),
    (
        "Serving engineer",
        (
            "docs/tutorial-serving.md",
            "docs/plans.md",
            "docs/cache.md",
            "docs/containers.md",
            "docs/fleet.md",
            "docs/bundles.md",
            "docs/signing.md",
            "docs/service.md",
            "docs/selection.md",
            "docs/numerics.md",
            "docs/json.md",
        ),
    ),
    (
        "Model developer",
        (
            "docs/tutorial-model.md",
            "docs/grouped-gemm.md",
            "docs/moe-layer.md",
            "docs/expert-parallel.md",
            "docs/integrations.md",
            "docs/torch.md",
            "docs/gradients.md",
            "docs/route.md",
            "docs/layer-operations.md",
            "docs/arguments.md",
            "docs/fc2.md",
            "docs/mxfp4.md",
            "docs/prepacked-weights.md",
            "docs/renamed.md",
        ),
    ),
    (
        "Kernel engineer",
        (
            "docs/kernel-engineer.md",
            "docs/inspect.md",
            "docs/verify.md",
            "docs/emulator.md",
            "docs/emulator-devices.md",
            "docs/emulator-kernels.md",
            "docs/adding-a-target.md",
            "docs/adding-an-activation.md",
        ),
    ),
    (
        "Measurements",
        (
            "docs/benchmarks.md",
            "docs/hopper.md",
            "docs/selection-measured.md",
            "docs/moe-layer-measured.md",
            "docs/expert-parallel-measured.md",
            "docs/hopper-h100.md",
            "docs/mxfp4-hopper.md",
            "docs/blackwell.md",
            "docs/blackwell-rtx.md",
            "docs/gpu.md",
        ),
    ),
    (
        "Project",
        (
            "docs/design.md",
            "docs/design-kernels.md",
            "docs/design-cache.md",
            "docs/design-calls.md",
            "docs/design-service.md",
            "docs/chaos.md",
            "SECURITY.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
        ),
    ),
)
"""Each section with its pages, as paths from the root of the repository."""


def documents() -> Iterator[str]:
    """Yield every page of the menu that is not generated, besides the home page."""
    for _, pages in PAGES:
        yield from pages
