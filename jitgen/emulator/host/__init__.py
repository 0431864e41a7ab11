# SPDX-License-Identifier: Apache-2.0
"""The host part of an artifact: native code that is run unchanged, to find its launch."""
