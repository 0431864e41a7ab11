# SPDX-License-Identifier: Apache-2.0
"""
How good the selector's choice is, on problems that were not tuned for: random ones, and groups
whose rows are uneven, as drawn or as a router dealt them.

Every candidate of a problem is checked and timed in turn. The *regret* is the time of the chosen
one beyond the best. Only times are saved, so that `--from` computes the regret of today's selector.
"""

NAME = "choice"
"""Name of the suite."""
