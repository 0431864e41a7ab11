# SPDX-License-Identifier: Apache-2.0
"""
Bundles: all kernels of a plan in one file, which is an OCI image as well.

The file is a tar of an OCI image layout with one zstd layer, which holds entries in the store's own
layout. The same bytes are thus a file for a machine without a network, an artifact in a registry, a
stage to COPY from in a Dockerfile, and an image to mount: the unpacked layer is a root for
JITGEN_BASE. Signatures are beside the entries, as in a store.

`archive` reads and writes tars, `layer` has the store's layout, `image` that of OCI, `export` makes
bundles and `install` imports them. Reading trusts nothing: see `image.load`.
"""
