# SPDX-License-Identifier: Apache-2.0
"""
Support for torch's tracers, which record calls without having the values of tensors.

Under FakeTensorMode, `make_fx`, `torch.jit.trace`, `torch.export`, `torch.vmap` and `torch.compile`
a call must not launch a kernel: tensors may have no memory, and the recorded graph would lack the
product. There the call becomes an operation of torch's dispatcher, ``torch.ops.jitgen.*``, which
every tracer can record. Everywhere else a call bypasses the dispatcher, which costs twice as much
as the whole call.

`jitgen.ops.dispatcher.is_traced` says whether a call is traced. `library` makes the operations of a
call from its description and registers them when a tracer first sees the call;
``import jitgen.torch`` registers all of them; programs that load an exported graph need this.
`compiled` is the version for torch.compile, and `gradients` that for autograd.
"""
