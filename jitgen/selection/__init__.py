# SPDX-License-Identifier: Apache-2.0
"""Chooses a config for a problem: by measurements, otherwise by the target's cost model."""
