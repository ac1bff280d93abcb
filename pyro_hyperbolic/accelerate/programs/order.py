"""The order that joined loops must keep."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def kept_order() -> Iterator[None]:
    """Let a loop that the compiler rewrites, to join it with others on a CPU, go on waiting for what it waited for.

    Torch finds this anew from what the rewritten loop reads, and so forgets sums that are made in place: a loop may
    read them before they are complete. The gradients of indexing and of pooling are such sums, and were wrong without
    a word (torch 2.13, https://github.com/pytorch/pytorch/issues/185509). What is compiled like this is kept on disk
    under keys of its own.
    """
    from torch._inductor.dependencies import StarDep, WeakDep
    from torch._inductor.scheduler import SchedulerNode  # slow to import

    node_type: Any = SchedulerNode
    if not hasattr(node_type, "recompute_size_and_body"):
        yield
        return
    rewrite = node_type.recompute_size_and_body

    def remember(node: Any, *args: Any, **kwargs: Any) -> None:
        first_names = node.scheduler.mutation_real_name  # a tensor has another name after every change in place
        names, ordered = {}, []
        for read in node.read_writes.reads:
            if isinstance(read, StarDep | WeakDep):
                ordered.append(read)  # to be waited for, though the loop does not read it by an index
            else:
                names[first_names.get(read.name, read.name)] = read.name
        rewrite(node, *args, **kwargs)
        reads_writes = node.read_writes
        for read in ordered:
            reads_writes = reads_writes.with_read(read)
        node.set_read_writes(reads_writes.rename(names))

    keys: Any = torch.compiler.config
    node_type.recompute_size_and_body = remember
    try:
        with keys.patch(cache_key_tag=f"{keys.cache_key_tag} in order"):
            yield
    finally:
        node_type.recompute_size_and_body = rewrite
