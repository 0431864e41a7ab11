# SPDX-License-Identifier: Apache-2.0
"""Mistakes drawn by chance from the source of a kernel, and whether `jitgen verify` finds them."""
