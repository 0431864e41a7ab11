# SPDX-License-Identifier: Apache-2.0
"""What every room needs and none is about: text, values, documents, frozen classes, forks."""
