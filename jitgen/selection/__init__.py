# SPDX-License-Identifier: Apache-2.0
"""From a problem to a config: by measurements, else by the target's cost model."""
