# SPDX-License-Identifier: Apache-2.0
"""What somebody else brings to jitgen: the target acme_cpu and the operation scale_rows."""
