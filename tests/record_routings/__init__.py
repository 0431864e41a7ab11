# SPDX-License-Identifier: Apache-2.0
"""
Train small mixtures of experts for minutes and record how their routers deal rows.

    python -m tests.record_routings [--steps 300] [-o jitgen/bench/choice/recorded.json]
    python -m tests.record_routings --show [FILE]       # how uneven rows are, beside drawn ones

The text is this repository's, byte by byte, as it is on the day: another day's gives other
routings. They are those of small models of a few layers, trained for a few minutes, and not of the
models whose sizes `jitgen bench choice` measures them with.
"""
