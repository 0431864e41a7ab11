# SPDX-License-Identifier: Apache-2.0
"""
Expert parallel: ranks that share a layer, each with some of its experts.

    dispatch -> the layer's launches -> combine_ranks

`connect` makes the connection of the ranks: memory that all ranks see, on GPUs or in processes of
one host, or collectives of torch where such memory is not available. `jitgen.MoELayer(..., group=)`
uses it; `balance` proposes which ranks hold which experts; several ranks may hold a heavily loaded
expert. Docs: docs/expert-parallel.md.
"""

from jitgen.parallel.balance import balance
from jitgen.parallel.connect import connect
from jitgen.parallel.expert_map import ExpertMap
from jitgen.parallel.share import share
from jitgen.parallel.wire import Wire

__all__ = ["ExpertMap", "Wire", "balance", "connect", "share"]
