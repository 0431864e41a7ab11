# SPDX-License-Identifier: Apache-2.0
"""
Every error that jitgen raises on purpose.

::

    JitgenError
    ├── ConfigError (ValueError)          a config, name or JSON document is malformed
    │   ├── UnsupportedConfig             well formed, but the hardware or a template cannot run it
    │   └── OverrideError                 a file is no edited source of a kernel
    ├── InputError (ValueError)           a tensor or size handed to an operation is wrong
    ├── SettingError (ValueError)         a JITGEN_* variable or setting has a bad value
    ├── PlanError (ValueError)            a prewarm plan cannot be read
    ├── RenderError                       a template failed
    ├── CompileError                      the compiler refused the generated source
    │   └── RememberedFailure             it failed before; the cache remembers why
    ├── ResourceError                     memory, processes, descriptors or disk ran out: try again
    │   └── CompileTimeout (TimeoutError)     a compile took too long
    ├── PeerTimeout (TimeoutError)        a rank waited too long for another one
    ├── ToolchainError                    a compiler, library or tool is missing or does not work
    ├── ArtifactError                     an artifact cannot be loaded
    ├── EmulationError                    a kernel cannot be run in the emulator
    │   ├── UnsupportedPtx                its code holds what the emulator does not know
    │   └── MachineFault                  it did something that hardware would not survive
    │       └── Deadlock                  ... such as waiting for ever
    ├── CacheError
    │   └── UnsafeCacheRoot (PermissionError)
    ├── SigningError                      a key, an envelope or a trust document cannot be used
    ├── LockError                         a lock of kernels cannot be read, or does not hold here
    ├── KernelMiss (LookupError)          the kernel is not compiled and may not be compiled now
    │   └── CaptureMiss                   ... because a CUDA graph is being captured
    └── InternalError                     an unexpected error: a mistake in jitgen, or below

A message says what was asked, what is allowed, and what to do, in one line; the facts are
attributes too.
"""

from __future__ import annotations


class JitgenError(Exception):
    """Base of all errors that jitgen raises on purpose."""


class ConfigError(JitgenError, ValueError):
    """A config, a kernel name or a JSON document is malformed."""


class UnsupportedConfig(ConfigError):
    """
    A well-formed config that its target cannot run.

    Attributes:
        code: Stable machine-readable rule, for example ``E_REGS``.
        proposal: The nearest legal config of the same operation, or None if there is none.
    """

    def __init__(self, message: str, *, code: str, proposal: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.proposal = proposal


class OverrideError(ConfigError):
    """
    A file that is to be an edited kernel cannot be used as one.

    Attributes:
        path: The file.
    """

    def __init__(self, path: object, message: str) -> None:
        super().__init__(f"{path} {message}")
        self.path = path


class InputError(JitgenError, ValueError):
    """
    A tensor or size that was handed to an operation is wrong.

    Attributes:
        argument: Name of the argument at fault.
    """

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(f"{argument}: {message}")
        self.argument = argument


class SettingError(JitgenError, ValueError):
    """A JITGEN_* variable or a setting has a value that is not allowed."""


class PlanError(JitgenError, ValueError):
    """A prewarm plan cannot be found or read."""


class RenderError(JitgenError):
    """A template failed; the message names template, line and config."""


class CompileError(JitgenError):
    """
    The compiler refused a generated source.

    Attributes:
        kernel: Name of the kernel.
        reason: The compiler's own words, shortened.
        is_certain: Whether the compiler also refused it in a process that did nothing else. Then
            the failure is remembered for other processes. Otherwise the cause may be this process,
            such as a deep stack or little memory.
    """

    def __init__(self, kernel: str, reason: str, *, is_certain: bool = False) -> None:
        super().__init__(f"{kernel} did not compile: {reason}")
        self.kernel = kernel
        self.reason = reason
        self.is_certain = is_certain


class RememberedFailure(CompileError):
    """The same config failed before and the cache remembers it until the failure expires."""


class ResourceError(JitgenError):
    """
    Memory, processes, descriptors or disk ran out, or a process was killed or took too long.

    That says nothing about the kernel: it is never remembered for others, and trying again some
    seconds later may help.
    """


class CompileTimeout(ResourceError, TimeoutError):
    """A compile took longer than JITGEN_COMPILE_TIMEOUT."""


class PeerTimeout(JitgenError, TimeoutError):
    """
    A rank waited for another one longer than it may.

    Attributes:
        rank: The rank that waited.
        source: The rank that did not send.
        number: The round in which it waited.
    """

    def __init__(self, message: str, *, rank: int, source: int, number: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.source = source
        self.number = number


class ToolchainError(JitgenError):
    """
    A required tool is not installed or does not work: the compiler, a runtime library, a
    disassembler, a linker.
    """


class ArtifactError(JitgenError):
    """A compiled kernel cannot be loaded into this process."""


class EmulationError(JitgenError):
    """A kernel cannot be run in the emulator."""


class UnsupportedPtx(EmulationError):
    """
    PTX or host code holds what the emulator does not know.

    Attributes:
        unknown: The unknown instructions or other texts, with PTX lines where there are any.
    """

    def __init__(self, message: str, *, unknown: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.unknown = unknown


class MachineFault(EmulationError):
    """
    An emulated kernel did what hardware would not allow, such as an access out of bounds or to a
    barrier that was never initialised. The message names instruction, CTA and threads.
    """


class Deadlock(MachineFault):
    """Every thread of an emulated kernel waits; the message says what each one waits for."""


class CacheError(JitgenError):
    """The disk cache cannot do what was asked."""


class UnsafeCacheRoot(CacheError, PermissionError):
    """Another user could write to the cache root; native code is never loaded from there."""


class SigningError(JitgenError):
    """A key, an envelope of signatures or a trust document is malformed, or cannot be used."""


class LockError(JitgenError):
    """
    A lock cannot be read, or this machine would not run the kernels that it lists.

    Attributes:
        differences: The differences from the lock, one sentence each; empty if the file cannot be
            read.
    """

    def __init__(self, message: str, differences: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.differences = differences


class KernelMiss(JitgenError, LookupError):
    """
    A kernel is not compiled, and compiling is off (``JITGEN_ON_MISS=error`` or ``freeze()``).

    Attributes:
        kernel: Name of the kernel that is missing.
        is_passing: Whether a cache or service that may have the kernel could not be read at this
            time.
    """

    def __init__(self, kernel: str, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.kernel = kernel
        self.is_passing = is_passing


class CaptureMiss(KernelMiss):
    """A call needed a kernel that is not loaded, while a CUDA graph was being captured."""


class InternalError(JitgenError):
    """
    An unexpected error: a mistake in jitgen, or in a library that it uses.

    The message says what jitgen was doing, and where the error occurred; the cause is chained.
    """
