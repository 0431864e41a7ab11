# SPDX-License-Identifier: Apache-2.0
"""The gradient of an activation, beside the activation again."""
