# SPDX-License-Identifier: Apache-2.0
"""Every public call that torch's tracers see as one operation."""

from __future__ import annotations

from typing import Any

from jitgen.ops.activation_backward.call import CALL as ACTIVATION_BACKWARD
from jitgen.ops.activation_quantize.call import CALL as ACTIVATION_QUANTIZE
from jitgen.ops.add_lora.call import CALL as ADD_LORA
from jitgen.ops.call import Call
from jitgen.ops.combine.call import CALL as COMBINE
from jitgen.ops.grouped_gemm.call import CALL as GROUPED_GEMM
from jitgen.ops.grouped_gemm.prepacked_call import CALL as GROUPED_GEMM_PREPACKED
from jitgen.ops.grouped_gemm_wgrad.call import CALL as GROUPED_GEMM_WGRAD
from jitgen.ops.moe_fc2_dense.call import CALL as MOE_FC2_DENSE
from jitgen.ops.permute_quantize.call import CALL as PERMUTE_QUANTIZE
from jitgen.ops.quantize.call import CALL as QUANTIZE
from jitgen.ops.route.call import CALL as ROUTE
from jitgen.ops.route.call import SORT as SORT_PAIRS

CALLS: tuple[Call[Any, Any, Any], ...] = (
    *(
        ACTIVATION_BACKWARD,
        ACTIVATION_QUANTIZE,
        ADD_LORA,
        COMBINE,
        GROUPED_GEMM,
        GROUPED_GEMM_PREPACKED,
        GROUPED_GEMM_WGRAD,
        MOE_FC2_DENSE,
    ),
    *(PERMUTE_QUANTIZE, QUANTIZE, ROUTE, SORT_PAIRS),
)
