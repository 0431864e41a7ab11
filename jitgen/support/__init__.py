# SPDX-License-Identifier: Apache-2.0
"""Helpers of all folders: text, settings' values, documents, frozen classes, forks, errors."""
