# SPDX-License-Identifier: Apache-2.0
"""Mistakes in kernels that compute a layer of experts in one launch: edits of their source."""

from __future__ import annotations

from tests.compile.mutations import Mutation, rewrite

_SYNC = "        sync_warpgroup(schedule.warpgroup)\n"
_ASK = "        next_first, next_second = ask_for(schedule, exchange, behind)\n"
_MULTIPLIED = f"{_SYNC[:-1]}  # all warps have multiplied with the tile before\n"

EDITS: dict[str, tuple[str, str]] = {
    # the list of experts
    "an expert is listed as often as it is chosen": (
        "(first[i] == lane + 32 * i)",
        "(lane + 32 * i < num_pairs)",
    ),
    "experts of other ranks are listed": (" & (own[i] < num_experts)", ""),
    "experts have the numbers of the whole layer": (
        "topk_ids[token[i], place] - first_expert",
        "topk_ids[token[i], place]",
    ),
    "pairs beyond the first 32 count as those": (
        "else 32 + first_of(high)",
        "else first_of(high)",
    ),
    "the table has all pairs in one word": (
        "atomic_or(row + i, Int32(1)",
        "atomic_or(row, Int32(1)",
    ),
    "the places of later pairs begin anew": (
        "place = before + cute.arch.popc(found[1] & below)",
        "place = cute.arch.popc(found[1] & below)",
    ),
    "a token that chose an expert twice has the first weight": (
        "            weight[i] = Float32(0.0)\n            while of_token != 0:",
        "            while of_token == 0:",
    ),
    "a token has the weights of all": (
        " & Uint64(2**64 - 1) >> Uint64(64 - top_k)",
        "",
    ),
    "an expert's tokens are those of its first pair": (
        "lists.chosen[place] = table[2, own[i]]",
        "lists.chosen[place] = Int32(1) << token[i]",
    ),
    "experts of later pairs are not counted": (
        "lists.count[0] = before + cute.arch.popc(found[1])",
        "lists.count[0] = before",
    ),
    "loads do not wait for the list": (
        "cute.arch.barrier(barrier_id=LISTED, number_of_threads=32 * WARPGROUPS)",
        "cute.arch.sync_warp()",
    ),
    # the launch
    "launches have one number": ("return Int32(ticket >> 32) + 1", "return Int32(1)"),
    "the launch before counts": ("return Int32(ticket >> 32) + 1", "return Int32(ticket >> 32)"),
    "no launch is counted": ("if Int32(ticket) == num_ctas - 1:", "if Int32(ticket) == num_ctas:"),
    "CTAs count on for ever": (
        "step = (Int64(1) << 32) - Int64(num_ctas)",
        "step = Int64(1) << 32",
    ),
    # stages
    "stages are filled before they are free": (
        "    cute.arch.mbarrier_wait(ring.empty + slot, state.phase)\n",
        "",
    ),
    "stages are read before they are full": (
        "    cute.arch.mbarrier_wait(ring.full + slot, load.phase)\n",
        "",
    ),
    "half of the bytes are expected": (
        "mbarrier_arrive_and_expect_tx(full, STAGE_BYTES)",
        "mbarrier_arrive_and_expect_tx(full, STAGE_BYTES // 2)",
    ),
    "scales are not waited for": (
        "cute.arch.mbarrier_init(ring.full + thread, 1 + 2 * BLOCKS)",
        "cute.arch.mbarrier_init(ring.full + thread, 1)",
    ),
    "one warp frees a stage": (
        "cute.arch.mbarrier_init(ring.empty + thread, 4)",
        "cute.arch.mbarrier_init(ring.empty + thread, 1)",
    ),
    "a stage is free while it is multiplied": ("    warpgroup.wait_group(0)\n", ""),
    "warpgroups share their stages": (
        "slot = schedule.warpgroup * STAGES + load.index\n    cute.arch.mbarrier_wait",
        "slot = load.index\n    cute.arch.mbarrier_wait",
    ),
    # weights
    "ups are gates": ("rows = unit, unit + schedule.units_of_h", "rows = unit, unit"),
    "both halves of a stage are one": (
        "weights.boxes[None, (2 * slot + half) * count + i]",
        "weights.boxes[None, 2 * slot * count + i]",
    ),
    "columns of out are taken twice": (
        "rows = unit, unit + schedule.num_ctas",
        "rows = unit, unit",
    ),
    "all blocks have the first one's scale": (
        "box * size + place % size",
        "box * size",
    ),
    "ups have the scales of gates": (
        "row = rows[0] if lane < BLOCKS else rows[1]",
        "row = rows[0]",
    ),
    "pieces of h are taken by the wrong warpgroup": (
        "cutlass.range(share.first_piece, pieces, WARPGROUPS, unroll=1)",
        "cutlass.range(schedule.warpgroup, pieces, WARPGROUPS, unroll=1)",
    ),
    "both parts of a piece are one": (
        "part_of(schedule, lists, 2 * piece + 1)",
        "part_of(schedule, lists, 2 * piece)",
    ),
    "both parts of a piece have the scales of one": (
        "expert = parts[1][0] if place >= BLOCKS // 2 else expert",
        "expert = parts[0][0]",
    ),
    # products
    "sums of stages add up": ("cute.gemm(mmas[min(k, 1)], acc", "cute.gemm(mmas[1], acc"),
    "the products of another block count": (
        "value = high if is_odd == 1 else low",
        "value = low if is_odd == 1 else high",
    ),
    "tokens have the factors of their neighbours": (
        "factor = factors[token + v, block]",
        "factor = factors[token, block]",
    ),
    "all blocks have the factors of the first chunk": (
        "promote(total, acc, scales, tiles.factors, chunk * BLOCKS)",
        "promote(total, acc, scales, tiles.factors, 0)",
    ),
    "units of h are sums of all before": (
        "        total.fill(0.0)\n        if turn",
        "        if turn",
    ),
    "half of the blocks are left out of gates": (
        "for half in cutlass.range_constexpr(2):\n                    for n",
        "for half in (0,):\n                    for n",
    ),
    "sums of a unit are read before all are there": (
        f"            store_total(total, own[None, None, None, None, buffer])\n    {_SYNC}",
        "            store_total(total, own[None, None, None, None, buffer])\n",
    ),
    "one buffer serves all units": (
        "buffer ^= 1  # the other",
        "buffer ^= 0  # the other",
    ),
    "h is multiplied before all of it is there": (
        f'        cute.arch.fence_proxy("async.shared", space="cta")\n{_MULTIPLIED}',
        '        cute.arch.fence_proxy("async.shared", space="cta")\n',
    ),
    "h is multiplied without a fence": (
        f'        cute.arch.fence_proxy("async.shared", space="cta")\n{_MULTIPLIED}',
        _MULTIPLIED,
    ),
    "no warpgroup waits for the sums of others": (
        "    cute.arch.barrier(barrier_id=READY, number_of_threads=MATH_THREADS)\n    own",
        "    own",
    ),
    "half of the sums are left out": (
        "for part in cutlass.range_constexpr(2):",
        "for part in (0,):",
    ),
    # the exchange
    "h is sent without a gate": ("gate * sigmoid(alone(gate))[0] * up", "up"),
    "words of another launch are taken": (
        "while (Int32(first >> 32) != number) | (Int32(second >> 32) != number):",
        "while (first == 0) | (second == 0):",
    ),
    "words of one token are another's": (
        "return cute.arch.popc((tokens & -tokens) - 1)",
        "return 0",
    ),
    "a token's words are the next one's": (
        "        first, second = next_first, next_second\n",
        "",
    ),
    "h has no weight": ("factor = scales[0] * weight if", "factor = scales[0] if"),
    "blocks beyond the last are waited for": (
        " & (block < schedule.blocks_of_h)\n",
        "\n",
    ),
    "rows of h of two experts are one": (
        "row = (place * schedule.num_tokens + token) * (",
        "row = token * (",
    ),
    "one tile serves all pieces of h": (
        "        buffer ^= 1\n    return totals",
        "        buffer ^= 0\n    return totals",
    ),
    "words that were asked for are of the token before": (
        f"        behind = next_of(schedule, lists, behind)\n{_ASK}    return",
        f"{_ASK}    return",
    ),
    "tokens that did not choose an expert have its factor": (
        "    factor = Float32(0.0)  # of the token that has the lane's number\n",
        "    factor = Float32(1.0)\n",
    ),
    # tokens
    "tokens are not swizzled": ("(lane ^ (token << 2))", "lane"),
    "tiles are not cleared": ("    clear(x_tiles, chunks_of_x)\n", ""),
    "sums lie where tokens are still read": (
        "    cute.arch.barrier(barrier_id=READY, number_of_threads=MATH_THREADS)  # tokens",
        "    # tokens",
    ),
    "quotients are products with a rounded inverse": (
        "quotient = cute.math.fma(-excess, inverse, quotient)",
        "quotient = quotient * Float32(1.0)",
    ),
    "the largest magnitude is the lane's own": (
        'cute.arch.warp_redux_sync(magnitude, "max").bitcast(Float32)',
        "magnitude.bitcast(Float32)",
    ),
    "negative numbers are no magnitudes": (
        "bits = numbers[i, n].bitcast(Uint32) & Uint32(0x7FFFFFFF)",
        "bits = numbers[i, n].bitcast(Uint32)",
    ),
    "tokens are read before the kernel before has ended": (
        "    cute.arch.griddepcontrol_wait()  # before",
        "    # before",
    ),
    "tokens are multiplied before they are there": (
        "        cute.arch.barrier(barrier_id=READY, number_of_threads=THREADS)\n",
        "",
    ),
    # shares
    "a unit that is shared is what one warpgroup has of it": (
        "for group in cutlass.range(first, last + 1, unroll=1):",
        "for group in cutlass.range(first, first + 1, unroll=1):",
    ),
    "a unit has what its warpgroups have of the one before": (
        "part = buffer if group == first else Int32(HEAD)",
        "part = buffer",
    ),
    "the end of a unit is lost": (
        "store_total(total, own[None, None, None, None, part])\n                total.fill",
        "total.fill",
    ),
    "the end of a unit is in the next one": (
        "                total.fill(0.0)\n",
        "",
    ),
    "units that are shared are sent before all of them are there": (
        "        cute.arch.barrier(barrier_id=READY, number_of_threads=MATH_THREADS)\n        if",
        "        if",
    ),
}
"""
By the description of each mistake: a text that the kernel's source has once, and what replaces it.
"""

MISTAKES = [
    Mutation(name=name, program="layer", edit=rewrite(edit), kind="wrong", of_source=True)
    for name, edit in EDITS.items()
]
