# SPDX-License-Identifier: Apache-2.0
"""What the middle of a grouped GEMM's name looks like: one group for each field of its config."""

from __future__ import annotations

WORDS = (
    r"(?P<layout>[a-z]+)_(?P<a_dtype>[a-z0-9]+)_(?P<b_dtype>[a-z0-9]+)"
    r"_(?P<scale_granularity>[a-z0-9]+)_(?P<out_dtype>[a-z0-9]+)"
    r"(_as(?P<a_scale_granularity>[a-z0-9]+))?(_b(?P<b_layout>nmajor|(?:exact|folded|wide)[0-9]+))?"
    r"_t(?P<tile_m>\d{1,9})x(?P<tile_n>\d{1,9})x(?P<tile_k>\d{1,9})"
    r"_c(?P<cluster_m>\d{1,9})x(?P<cluster_n>\d{1,9})"
    r"_acc(?P<num_acc_stage>\d{1,9})(_ab(?P<num_ab_stage>\d{1,9}))?(_raster(?P<raster>\d{1,9}))?"
    r"(?P<nopdl>_nopdl)?(?P<streamb>_streamb)?(_splitk(?P<split_k>\d{1,9}))?"
    r"(?P<twocta>_twocta)?(?P<safesel>_safesel)?(?P<earlyb>_earlyb)?(?P<bias>_bias)?"
)
