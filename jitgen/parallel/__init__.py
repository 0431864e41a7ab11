# SPDX-License-Identifier: Apache-2.0
"""
Expert parallel in one host: ranks that share a layer, each with some of its experts.

    dispatch -> the layer's launches -> combine_ranks

`connect` makes what ranks reach each other by: memory that all see, on GPUs of one host or in
processes of one, or collectives of torch where there is none. `jitgen.MoELayer(..., group=)` uses
it; `balance` proposes which ranks have which experts, some of them twice.
Docs: docs/expert-parallel.md.
"""

from jitgen.parallel.balance import balance
from jitgen.parallel.connect import connect
from jitgen.parallel.expert_map import ExpertMap
from jitgen.parallel.share import share
from jitgen.parallel.wire import Wire

__all__ = ["ExpertMap", "Wire", "balance", "connect", "share"]
