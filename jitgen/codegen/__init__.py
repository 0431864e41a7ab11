# SPDX-License-Identifier: Apache-2.0
"""From a config to the source of its kernel."""
