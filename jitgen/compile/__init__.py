# SPDX-License-Identifier: Apache-2.0
"""From a source to an artifact: compile, link, inspect."""
