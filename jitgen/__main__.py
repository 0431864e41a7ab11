# SPDX-License-Identifier: Apache-2.0
"""``python -m jitgen`` is the command line."""

from jitgen.cli.main import main

main()
