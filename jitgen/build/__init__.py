# SPDX-License-Identifier: Apache-2.0
"""From a config to an artifact: render, compile, link, inspect."""
