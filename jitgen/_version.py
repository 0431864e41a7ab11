# SPDX-License-Identifier: Apache-2.0
"""The version, in a file that packaging can read without importing anything."""

__version__ = "1.0.0"
