# SPDX-License-Identifier: Apache-2.0
"""
Models of transformers with jitgen's experts beside transformers' own: prefill and generate.

The models have real widths, two layers and random weights, so that one fits anywhere and all of its
experts are used. Every implementation is compared with float32 experts before it is timed.
"""

NAME = "transformers"
