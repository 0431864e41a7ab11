# SPDX-License-Identifier: Apache-2.0
"""
Many processes, one compile: what the ranks of a job, or the workers of a cluster, share.

`warm_up` brings the kernels of a plan to every rank of a torch.distributed job; `cluster` has the
workers of a Dask cluster compile them. `board` is what ranks tell each other, `rank` what each of
them does about it. Nothing here is imported by a program that does not ask for it.
"""
