# SPDX-License-Identifier: Apache-2.0
"""Timing of calls and the check of their results before it, for benchmarks and for tuning."""
