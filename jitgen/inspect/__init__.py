# SPDX-License-Identifier: Apache-2.0
"""
Pages to read: one kernel, or two and their difference, and a whole cache, each one file of HTML.

What a page shows is gathered first, into frozen dataclasses (`kernel`, `code`, `memory`, `fit`,
`measured`, `emulated`, `difference`; `cache_report`), and then rendered (`page`, `sections`,
`plots`, `cache_page`), through `markup`, which escapes whatever is not markup already. A page loads
nothing from anywhere, and its policy lets only its own style and script count.
"""
