# SPDX-License-Identifier: Apache-2.0
"""The operations that users call with tensors, each in its own folder."""
