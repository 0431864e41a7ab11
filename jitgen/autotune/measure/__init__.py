# SPDX-License-Identifier: Apache-2.0
"""
How calls are timed, and how their results are checked first: what benchmarks and tuning share.
"""
