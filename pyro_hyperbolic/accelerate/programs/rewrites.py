"""Traces rewritten for the compiler: they compute the same, in a form that it makes faster code of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.compiler import graphs
from pyro_hyperbolic.accelerate.compiler.graphs import is_view, mutates

# Columns of a product that is thin, and products of numbers in one that is small.
_FEW = 32
_FEW_TERMS = 1 << 22
# The same of float32, which has faster products: the largest size of one that is small, how many products of numbers it
# has, and the terms of one that is written term by term.
_NARROW, _FEW_NARROW_TERMS, _FEWEST = 256, 1 << 19, 4
_FEW_TERMS_ON_CPU = 1 << 15
_MOST_FOLDED = 1 << 20  # indices
# Operations whose result is their argument, where no derivative is taken.
_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


def lift_constants(graph: torch.fx.GraphModule) -> list[Tensor]:
    """Make the tensors that a graph holds its first inputs; they are returned."""
    nodes = list(graph.graph.nodes)
    tensors: dict[str, Tensor] = {}
    lifted: dict[str, Any] = {}
    for node in nodes:
        value = getattr(graph, node.target, None) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        if node.target not in lifted:
            tensors[node.target] = value.detach()
            with graph.graph.inserting_before(nodes[0]):
                lifted[node.target] = graph.graph.placeholder(f"constant_{len(lifted)}")
                lifted[node.target].meta = node.meta
        node.replace_all_uses_with(lifted[node.target])
        graph.graph.erase_node(node)
    for name in tensors:
        delattr(graph, name)
    graph.recompile()
    return list(tensors.values())


def write_out_of_place(graph: torch.fx.GraphModule) -> None:
    """Turn operations that change a tensor of the graph's own in place into those that make another one.

    What saves memory in a program means nothing to the compiler, but the other rewrites must leave such a graph alone.
    """
    places = {node: i for i, node in enumerate(graph.graph.nodes)}
    for node in [node for node in places if node.op == "call_function" and mutates(node.target)]:
        own, other = node.args[0] if node.args else None, _without_mutation(node)
        if other is None or not isinstance(own, torch.fx.Node) or own.op != "call_function":
            continue
        # What it may share its memory with is not followed.
        if any(is_view(n.target) for n in (own, *own.users) if n is not node and n.op != "output"):
            continue
        node.target = other
        for user in [user for user in own.users if places[user] > places[node]]:
            user.replace_input_with(own, node)
    graph.recompile()


def _without_mutation(node: torch.fx.Node) -> Any:
    """The operation that does the same out of place, to the same dtype; ``None`` where there is none."""
    name, _, overload = str(node.target).removeprefix("aten.").partition(".")
    other = getattr(getattr(torch.ops.aten, name.removesuffix("_"), None), overload, None)
    mode = getattr(node.meta.get("val"), "fake_mode", None)
    if other is None or mutates(other) or mode is None or any("val" not in n.meta for n in node.all_input_nodes):
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with mode:
        made = other(*args, **kwargs)
    value = node.meta["val"]
    return other if (made.dtype, made.shape) == (value.dtype, value.shape) else None


def compute_once(graph: torch.fx.GraphModule) -> None:
    """Leave out what is computed twice, what no one uses, and what only hides a tensor from its derivatives.

    The compiler takes time for each operation, several times over, before it finds that out by itself.
    """
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    if any(mutates(node.target) for node in nodes):
        return  # the same operation may have another result after a change
    known: dict[Any, torch.fx.Node] = {}
    for node in nodes:
        if node.target in _SAME:
            other = node.args[0]
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue
        else:
            # As text, in which a number has its type and its sign.
            other = known.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
        # Two results stay two: who changes one of them in place does not mean the other.
        if other is not node and not any(user.op == "output" for user in node.users):
            node.replace_all_uses_with(other)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def fold_indices(graph: torch.fx.GraphModule) -> None:
    """Compute once and for all which numbers a program takes from a tensor, where that depends on nothing.

    The compiler computes the pairs of all points anew for every coordinate of theirs, on CUDA in every kernel, and
    looks at each whether it exists.
    """
    nodes, unchecked = [node for node in graph.graph.nodes if node.op == "call_function"], graphs.unchecked()
    if any(mutates(node.target) for node in nodes):
        return
    values: dict[torch.fx.Node, Any] = {}
    folded: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in [node for node in nodes if node.target in unchecked]:
        own, indices = node.args[:2]
        sizes = getattr(own.meta.get("val"), "shape", ())
        taken = [(index, sizes[dim : dim + 1]) for dim, index in enumerate(indices) if index is not None]
        if not all(_is_within(_value(index, values), size) for index, size in taken):
            continue
        for index, _ in taken:
            if index not in folded:
                name = f"_folded_{len(folded)}"
                graph.register_buffer(name, values[index].contiguous())
                with graph.graph.inserting_before(index):
                    folded[index] = graph.graph.get_attr(name)
                folded[index].meta = index.meta
        node.target = unchecked[node.target]
        node.args = (own, [folded.get(index) for index in indices], *node.args[2:])
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _value(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    """What an operation comes to whatever the inputs of the graph are; ``None`` where it depends on them."""
    if node not in values:
        values[node] = None
        form, target = node.meta.get("val"), node.target
        is_small = not isinstance(form, Tensor) or form.numel() <= _MOST_FOLDED
        is_drawn = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
        if callable(target) and is_small and not is_drawn:
            known = {other: _value(other, values) for other in node.all_input_nodes}
            if all(value is not None for value in known.values()):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
                values[node] = target(*args, **kwargs)
    return values[node]


def _is_within(index: Any, size: Sequence[int]) -> bool:
    """Whether these are indices of a dimension of this size."""
    if not isinstance(index, Tensor) or index.dtype != torch.int64 or not index.numel():
        return False
    return int(index.min()) >= 0 and any(int(index.max()) < s for s in size)


def keep_sources(graph: torch.fx.GraphModule) -> None:
    """Have what numbers are taken from computed before, where more are taken than there are.

    The compiler would compute a point again in each of its pairs.
    """
    keep, unchecked = graphs.keeping(), graphs.unchecked()
    taking = {torch.ops.aten.index.Tensor, unchecked.get(torch.ops.aten.index.Tensor)}
    kept: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in [node for node in graph.graph.nodes if node.target in taking and keep is not None]:
        own = node.args[0]
        value = own.meta["val"]
        if own.op != "call_function" or node.meta["val"].numel() <= value.numel() or 0 in value.stride():
            continue
        if own not in kept:
            with graph.graph.inserting_after(own):
                kept[own] = graph.graph.call_function(keep, (own, list(value.stride())))
            kept[own].meta = own.meta
        node.replace_input_with(own, kept[own])
    graph.recompile()


def order_by_depth(graph: torch.fx.GraphModule) -> None:
    """Move every operation to where its inputs are known, with draws in the order in which they were.

    The compiler fuses operations on the same tensor only where they are near to each other, and the derivative of a
    likelihood is traced long after the likelihood.
    """
    depths: dict[torch.fx.Node, int] = {}
    last_draw = 0
    for node in graph.graph.nodes:
        depth = 1 + max((depths[other] for other in node.all_input_nodes), default=-1)
        if hasattr(node.target, "tags"):
            if mutates(node.target):
                return  # what reads a tensor before it is changed must not come after
            if torch.Tag.nondeterministic_seeded in node.target.tags:
                depth = last_draw = max(depth, last_draw + 1)
        depths[node] = depth
    *nodes, output = graph.graph.nodes
    for node in sorted(nodes, key=lambda node: (node.op != "placeholder", depths[node])):
        output.prepend(node)
    graph.recompile()


def write_out_products(graph: torch.fx.GraphModule) -> None:
    """Write small products as sums of products of numbers.

    Geometry takes thin float64 products in programs of float32, of as many terms as a point has coordinates; flows take
    those of small networks; and there are their gradients. They take no time by themselves, but as calls of cuBLAS they
    are kernels of their own, and others make ready what they read and read what they write. As sums they become part of
    those others. Large ones are best left to cuBLAS. On a CPU they are what keeps a graph from being loops alone, which
    need no Python between them.
    """
    aten = torch.ops.aten
    products = (aten.mm.default, aten.bmm.default, aten.addmm.default)
    for node in [node for node in graph.graph.nodes if node.target in products]:
        *bias, left, right = node.args
        value, terms = node.meta["val"], left.meta["val"].shape[-1]
        if node.kwargs or not _is_small(value, terms):
            continue
        with graph.graph.inserting_before(node):
            if terms <= (_FEW if value.is_cuda and value.dtype == torch.float64 else _FEWEST):
                sum_ = _sum_of_columns(graph.graph, left, right, terms)
            else:
                sum_ = _sum_of_pairs(graph.graph, left, right)
            for term in bias:
                sum_ = _call(graph.graph, aten.add.Tensor, sum_, term)
        node.replace_all_uses_with(sum_)
        graph.graph.erase_node(node)
    graph.recompile()


def _is_small(value: Tensor, terms: int) -> bool:
    """Whether a product of so many terms is taken faster as a sum."""
    if value.device.type == "cpu":
        return value.numel() * terms <= _FEW_TERMS_ON_CPU
    if value.dtype == torch.float64:
        return min(*value.shape[-2:], terms) <= _FEW and value.numel() * terms <= _FEW_TERMS
    is_narrow = max(*value.shape[-2:], terms) <= _NARROW and value.numel() * terms <= _FEW_NARROW_TERMS
    return value.dtype == torch.float32 and is_narrow


def _call(graph: torch.fx.Graph, target: Any, *args: Any) -> torch.fx.Node:
    """An operation, and the form of its result, which the compiler looks at."""
    node = graph.call_function(target, args)
    own = torch.fx.map_arg(args, lambda n: n.meta["val"])
    with next(n for n in node.all_input_nodes).meta["val"].fake_mode:
        node.meta["val"] = target(*own)
    return node


def _sum_of_columns(graph: torch.fx.Graph, left: Any, right: Any, terms: int) -> Any:
    """A product of matrices term by term, which a kernel takes without a loop."""
    aten = torch.ops.aten
    total = None
    for k in range(terms):
        columns = [_call(graph, aten.slice.Tensor, t, i, k, k + 1) for t, i in ((left, -1), (right, -2))]
        # A sum of one number keeps the compiler from making what the columns are concatenated of again in this kernel,
        # or in one of its own, where it could be written by the kernel that makes it.
        factors = [_call(graph, aten.sum.dim_IntList, t, [i], True) for t, i in zip(columns, (-1, -2), strict=True)]
        term = _call(graph, aten.mul.Tensor, *factors)
        total = term if total is None else _call(graph, aten.add.Tensor, total, term)
    return total


def _sum_of_pairs(graph: torch.fx.Graph, left: Any, right: Any) -> Any:
    """A product of matrices as a sum over all pairs, which a kernel takes in a loop."""
    aten = torch.ops.aten
    factors = [_call(graph, aten.unsqueeze.default, t, i) for t, i in ((left, -1), (right, -3))]
    return _call(graph, aten.sum.dim_IntList, _call(graph, aten.mul.Tensor, *factors), [-2])
