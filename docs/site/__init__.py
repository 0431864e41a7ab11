# SPDX-License-Identifier: Apache-2.0
"""
The documentation as a site.

::

    pip install -e '.[docs]'
    python -m docs.site build -o build/site

writes the reference as Markdown (`docs.site.api` from docstrings, `docs.site.commands` from the
command line, `docs.site.variables` from the table of settings, `docs.site.arguments` from the
descriptions of calls), puts it beside the pages of ``docs/`` in the order of
`docs.site.navigation`, and has mkdocs make HTML of both, strictly. Everything up to mkdocs takes
jitgen's own dependencies alone, so that a test does it on every push.
"""
