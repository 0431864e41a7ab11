# SPDX-License-Identifier: Apache-2.0
"""
Problem to config: a short menu for each target, a rule that ranks it, and buckets that keep choices
few.
"""

from jitgen.select.bucket import bucket, buckets
from jitgen.select.choice import Choice, select, set_default_arch
from jitgen.select.menu import menu
from jitgen.select.rule import Candidate

__all__ = ["Candidate", "Choice", "bucket", "buckets", "menu", "select", "set_default_arch"]
