# SPDX-License-Identifier: Apache-2.0
"""
How good the selector's choice is, on problems that were not tuned for: random ones, and groups
whose rows are uneven, as drawn or as a router dealt them.

Every candidate of a problem is checked and timed in turn; what the chosen one takes longer than the
best is the *regret*. What is saved are times alone, so that `--from` says what the selector of
today would have lost.
"""

NAME = "choice"
"""Name of the suite."""
