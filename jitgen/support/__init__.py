# SPDX-License-Identifier: Apache-2.0
"""Helpers that all rooms use: text, settings' values, documents, frozen classes, forks, errors."""
