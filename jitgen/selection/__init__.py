# SPDX-License-Identifier: Apache-2.0
"""From a problem to a config: what was measured, else what the target's cost model predicts."""
