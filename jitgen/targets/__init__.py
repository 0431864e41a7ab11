# SPDX-License-Identifier: Apache-2.0
"""The targets that kernels are generated for: a folder each."""
