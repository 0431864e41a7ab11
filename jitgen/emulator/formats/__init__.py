# SPDX-License-Identifier: Apache-2.0
"""
How numbers, matrices and tensors lie in bits, bytes and registers.

Nothing here knows of a machine: these modules map values to codes and elements to addresses, and
each names the section of the PTX ISA that says so.
"""
