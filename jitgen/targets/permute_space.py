# SPDX-License-Identifier: Apache-2.0
"""Rules of every target for `permute_quantize`: which fields of a config go together."""

from __future__ import annotations

from dataclasses import replace

from jitgen.config.config import Layout
from jitgen.config.format import Format
from jitgen.config.permute_quantize import TAKEN, PermuteQuantizeConfig, Walk
from jitgen.config.quantize import Rounding
from jitgen.targets.protocol import refuse_unless
from jitgen.targets.sums import SumOrder

USUAL = PermuteQuantizeConfig(layout=Layout.RAGGED)
"""A config with the default tiling."""

SUMS = SumOrder(
    words="nothing: scales are maxima",
    free=("layout", "format", "walk", "power_of_two", "rounding", "tiling"),
)


def is_copying(config: PermuteQuantizeConfig) -> bool:
    """Say whether tokens were quantised before, so that values and scales are copied."""
    return config.walk is Walk.COPY


def check_kind(config: PermuteQuantizeConfig) -> None:
    """
    Require fields that go together.

    Raises:
        Refusal: They do not, with the code ``E_COPY``, ``E_TAKE``, ``E_POWER_OF_TWO``,
            ``E_ROUNDING``, ``E_WALK`` or ``E_LAYOUT``.
    """
    refuse_unless(
        config.walk is not Walk.TAKE or (config.format in TAKEN and not config.power_of_two),
        "E_TAKE",
        "take is for tokens of ranks, quantised to block128 or row without power_of_two, or none "
        f"(got {config.format}{', power_of_two' * config.power_of_two})",
    )
    form, is_copy = config.format, config.walk is Walk.COPY
    refuse_unless(
        not is_copy or (form.has_float_scales and not config.power_of_two),
        "E_COPY",
        "copy is for tokens that were quantised to block128 or row, without power_of_two (got "
        f"{form}{', power_of_two' * config.power_of_two})",
    )
    refuse_unless(
        form.has_float_scales or not config.power_of_two,
        "E_POWER_OF_TWO",
        f"power_of_two is for float32 scales that a kernel finds, block128 and row (got {form})",
    )
    refuse_unless(
        _is_rounded(form) or config.rounding is Rounding.UP,
        "E_ROUNDING",
        f"rounding={config.rounding} is for mxfp8 and mxfp4, whose scales are powers of two "
        f"(got {form})",
    )
    refuse_unless(
        config.walk is Walk.GATHER or not form.has_atoms,
        "E_WALK",
        f"{form}: scales in atoms lie where the row of a group says, which a walk over tokens does "
        "not know: gather",
    )
    refuse_unless(
        config.walk is Walk.GATHER or config.layout is Layout.RAGGED,
        "E_WALK",
        f"{config.layout}: the inverse has the rows of a ragged result, found or given: gather",
    )
    refuse_unless(
        not (form.has_atoms and config.layout is Layout.CONTIGUOUS),
        "E_LAYOUT",
        f"{form} has kernels for ragged and masked rows (got {config.layout})",
    )


def legal_kind(config: PermuteQuantizeConfig) -> PermuteQuantizeConfig:
    """Return `config`, in which each field that others do not allow has a value that they allow."""
    form, layout = config.format, config.layout
    if form.has_atoms and layout is Layout.CONTIGUOUS:
        layout = Layout.RAGGED
    is_free = not form.has_atoms and layout is Layout.RAGGED
    is_copy = config.walk is Walk.COPY
    is_taken = config.walk is not Walk.TAKE or form in TAKEN
    is_given = form.has_float_scales or not is_copy
    walk = config.walk if is_free and is_given and is_taken else Walk.GATHER
    return replace(
        config,
        layout=layout,
        walk=walk,
        power_of_two=config.power_of_two
        and form.has_float_scales
        and walk not in (Walk.COPY, Walk.TAKE),
        rounding=config.rounding if _is_rounded(form) else Rounding.UP,
    )


def _is_rounded(form: Format) -> bool:
    return form in (Format.MXFP8, Format.MXFP4)
