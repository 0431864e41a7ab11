# SPDX-License-Identifier: Apache-2.0
"""Makes the source of a kernel from its config."""
