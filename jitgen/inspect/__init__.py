# SPDX-License-Identifier: Apache-2.0
"""
Pages in HTML, each in one file: of one kernel, of two kernels and their difference, or of a whole
cache.

The data of a page are gathered first, into frozen dataclasses (`kernel`, `code`, `memory`,
`hardware`, `measured`, `emulated`, `difference`; `cache_report`), and then rendered (`page`,
`sections`, `plots`, `viewer`, `cache_page`) with `markup`, which escapes all text that is not
markup already. A page loads no other file, and its policy allows only its own style and script.
"""
