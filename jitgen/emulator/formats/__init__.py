# SPDX-License-Identifier: Apache-2.0
"""
Encodings of numbers, matrices and tensors in bits, bytes and registers.

Nothing here depends on the machine: these modules map values to codes and elements to addresses,
and each names the section of the PTX ISA that says so.
"""
