# SPDX-License-Identifier: Apache-2.0
"""From an artifact to a call: keys, tiers, loading, sessions."""
