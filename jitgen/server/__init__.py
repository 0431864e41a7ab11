# SPDX-License-Identifier: Apache-2.0
"""
The compile service: it compiles each kernel once for a fleet, signs it, and hands it out.

``jitgen serve`` runs it. A request holds configs, never source; an answer is an entry of the store
with its signatures, packed by `jitgen.remote.wire`. If the service fails, its clients compile for
themselves.

::

    settings, config_errors     the operator's TOML file
    tokens, quotas              what each token may do, and how much at a time
    accept, connection_slots,   connections: how many there are, and limits of time and size
      http_limits, descriptors
    routes, endpoint, request   the table of paths, scopes and answers; the way of each request
    *_handlers, ui              one function for each route
    entry_store, lru, vouching  entries on the disk and in memory; which of them are handed out
    jobs, work                  one job for each key, bounded queues, events; what a job does
    pools, supervisor,          a virtual environment for each toolchain, in which processes compile
      compile_task, questions
    confine                     what these processes cannot reach
    signer, signer_client       the process that alone has the key, and the service's side of it
    bucket, leases              what several services share: one compile among them

Only the command imports this package, and only when it runs.
"""
