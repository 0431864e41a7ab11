# SPDX-License-Identifier: Apache-2.0
"""
The compile service: one compile for a fleet, signed, bounded, and never in the way.

``jitgen serve`` runs it. Only configs come in, never source; what goes out is an entry of the store
as `jitgen.remote.wire` packs it, with its signatures.

::

    settings, mistakes      the operator's TOML file
    tokens                  who may do what
    resources, door, app    paths, scopes and answers: one table; what each request passes through
    shelf, hot              entries: on the disk, packed in memory, revoked
    jobs, queue             single flight by key, bounded queues, events
    pools, foreman, task    a virtual environment for each toolchain, which compiles in processes
    confine                 what these processes cannot reach
    signer                  a process of its own, which alone has the key
    leases                  one compile among several services

Nothing else of jitgen imports this room but its command, and that only when it runs.
"""
