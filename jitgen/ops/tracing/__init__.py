# SPDX-License-Identifier: Apache-2.0
"""
torch's tracers: what watches tensors instead of having their values.

Under FakeTensorMode, `make_fx`, `torch.jit.trace`, `torch.export`, `torch.vmap` and
`torch.compile` a call of ours must not reach a kernel: tensors may have no memory, and the graph
that is recorded would lack the product. There it becomes an operation of torch's dispatcher,
``torch.ops.jitgen.*``, which every tracer knows what to do with. Everywhere else it stays away from
the dispatcher, which costs twice as much as the whole call.

`detect` says whether somebody traces, `library` registers operations, and each operation has a
module here with its rows of that table. Importing such a module registers them, and ``import
jitgen.torch`` all of them, as programs have to that load an exported graph.
"""
