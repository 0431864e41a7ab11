# SPDX-License-Identifier: Apache-2.0
"""The bucket or folder that services share: leases, and entries in the layout of remote tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitgen.errors import SettingError

if TYPE_CHECKING:
    from jitgen.server.leases import Bucket


def bucket_of(url: str) -> Bucket | None:
    """
    Return the store at `url`; None for no URL.

    Raises:
        SettingError: It is none that can be used.
    """
    if not url:
        return None
    raise SettingError(f"replicas.shared: {url}")
