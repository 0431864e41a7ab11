# SPDX-License-Identifier: Apache-2.0
"""
From PTX text to Python functions.

`parse` reads the text into instructions, `blocks` cuts them at labels and jumps, and `translate`
writes one Python function for each block, with the emitters that `table` finds for each opcode and
the `builder` that all of them write with. An instruction that cannot be translated is reported
here, before anything runs.
"""
