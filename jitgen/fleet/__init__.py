# SPDX-License-Identifier: Apache-2.0
"""
Shares one compile among many processes: the ranks of a job, or the workers of a cluster.

`warm_up` brings the kernels of a plan to every rank of a torch.distributed job; `cluster` has the
workers of a Dask cluster compile them. `coordination` holds the records that ranks share, `rank` is
the work of one rank. No module of this package is imported until a program asks for it.
"""
