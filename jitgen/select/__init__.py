# SPDX-License-Identifier: Apache-2.0
"""
Problem to config: a short menu for each target, a rule that ranks it, and buckets that keep choices
few.
"""

from jitgen.select.bucket import bucket, buckets
from jitgen.select.choice import Choice, select
from jitgen.select.menu import menu
from jitgen.select.rule import Candidate
from jitgen.select.target import default_arch

__all__ = ["Candidate", "Choice", "bucket", "buckets", "default_arch", "menu", "select"]
