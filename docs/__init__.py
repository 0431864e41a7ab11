# SPDX-License-Identifier: Apache-2.0
"""The documentation: pages in Markdown, and what makes a site of them (`docs.site`)."""
