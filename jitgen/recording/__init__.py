# SPDX-License-Identifier: Apache-2.0
"""
What a program really calls: `recorder` counts it where JITGEN_RECORD names a file, `files` is what
lies on the disk. `jitgen.plans.recorded` turns it into a plan.
"""
