# SPDX-License-Identifier: Apache-2.0
"""
torch's tracers: what watches tensors instead of having their values.

Under FakeTensorMode, `make_fx`, `torch.jit.trace`, `torch.export`, `torch.vmap` and
`torch.compile` a call of ours must not reach a kernel: tensors may have no memory, and the graph
that is recorded would lack the product. There it becomes an operation of torch's dispatcher,
``torch.ops.jitgen.*``, which every tracer knows what to do with. Everywhere else it stays away from
the dispatcher, which costs twice as much as the whole call.

`jitgen.ops.dispatcher.is_traced` says whether a call is traced. `library` makes the operations of a
call from its description and registers them when a tracer first sees the call; ``import
jitgen.torch`` registers all of them, which programs need that load an exported graph. `compiled` is
the version for torch.compile, and `gradients` for autograd.
"""
