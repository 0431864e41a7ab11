# SPDX-License-Identifier: Apache-2.0
"""How the cost model of sm_90a got its constants; see `tests.fit_sm_90a.__main__`."""
