# SPDX-License-Identifier: Apache-2.0
"""The version, in a file that packaging can read without importing anything."""

__version__ = "0.1.0"
