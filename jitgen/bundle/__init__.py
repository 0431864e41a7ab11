# SPDX-License-Identifier: Apache-2.0
"""
Bundles: all kernels of a plan in one file, which is an OCI image as well.

The file is a tar of an OCI image layout with one zstd layer, and the layer holds entries in the
store's own layout. So the same bytes are a file to carry to a machine without a network, an
artifact in a registry, a stage to COPY from in a Dockerfile, and an image to mount: the unpacked
layer is a root for JITGEN_BASE. Signatures lie beside the entries, as they do in a store.

`archive` reads and writes tars, `layer` knows the store's layout, `image` that of OCI, `export`
makes bundles and `install` takes them in. Reading trusts nothing: see `image.load`.
"""
