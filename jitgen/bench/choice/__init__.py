# SPDX-License-Identifier: Apache-2.0
"""
How good the selector's choice is for problems that were not tuned: random problems, and groups with
uneven numbers of rows, drawn at random or recorded from a router.

Every candidate of a problem is checked and timed in turn. The *regret* is the time of the chosen
kernel over the time of the fastest one, minus 1. Only times are saved, so that `--from` computes
the regret of today's selector.
"""

NAME = "choice"
"""Name of the suite."""
