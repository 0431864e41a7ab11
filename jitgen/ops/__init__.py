# SPDX-License-Identifier: Apache-2.0
"""What users call with tensors: a folder for each operation."""
