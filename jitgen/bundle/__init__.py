# SPDX-License-Identifier: Apache-2.0
"""
Bundles: all kernels of a plan in one file, which is also an OCI image.

The file is a tar of an OCI image layout with one zstd layer, which holds entries in the store's own
layout. So the same bytes can be copied to a machine without a network, pushed to a registry, used
as a stage in a Dockerfile (COPY --from), or mounted as an image: the unpacked layer is a root for
JITGEN_BASE. Signatures are beside the entries, as in a store.

`archive` reads and writes tars, `layer` has the store's layout, `image` that of OCI, `export` makes
bundles and `install` imports them. Reading trusts nothing: see `image.load`.
"""
