# SPDX-License-Identifier: Apache-2.0
"""The command line: one file for each command group, and one output object that all of them use."""
