# SPDX-License-Identifier: Apache-2.0
"""
The host part of an artifact: native code that is run as it is, to learn what it would launch.
"""
