# SPDX-License-Identifier: Apache-2.0
"""
A whole layer of experts with DeepSeek-V3's sizes, from tokens and their experts to the result.

Each side computes it in its own way, is compared with float32 sums over its own weights, and is
then captured in a CUDA graph and timed in turn with the others, with nothing in L2. The floor is
what reading the weights of the chosen experts takes at the rate of a copy.
"""

NAME = "layer"
