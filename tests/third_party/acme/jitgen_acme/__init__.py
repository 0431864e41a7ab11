# SPDX-License-Identifier: Apache-2.0
"""A third party's plug-in: the target acme_cpu and the operation scale_rows."""
