# SPDX-License-Identifier: Apache-2.0
"""Compiles a source to an artifact, links and inspects it."""
