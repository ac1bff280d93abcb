"""What torch's compiler does otherwise while it compiles our graphs.

Each of :data:`CHANGES` can be left out by :func:`left_out`, by which ``benchmarks/changes.py`` measures what it is
worth.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

CHANGES = {
    "loop order": "joined loops wait for sums in place (CPU); without it gradients of indexing are wrong in torch 2.13",
    "dtype rules": "rules for the types of results are made once, not for every operation",
    "outer loops": "loops that cannot be joined are found before all of them are written (CPU)",
    "tiles": "loops are vectorised along the dimension that fills a vector (CPU)",
    "files": "loops are compiled several at a time, while others are still written (CPU)",
    "kernel timing": "kernels among which the compiler chooses are timed back to back",
    "trace order": "operations are moved to where their inputs are known",
    "pairs": "what numbers are taken from, and which, is computed before",
    "small products": "small products are written as sums of products",
    "one launch": "Adam steps all parameters in one launch",
}
_left_out: frozenset[str] = frozenset()


@contextlib.contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Do without some of :data:`CHANGES` while this is open."""
    global _left_out
    unknown = set(names) - CHANGES.keys()
    if unknown:
        raise ValueError(f"names must be among {sorted(CHANGES)}, got {sorted(unknown)}.")
    before, _left_out = _left_out, frozenset(names)
    try:
        yield
    finally:
        _left_out = before


def is_made(name: str) -> bool:
    """Whether one of :data:`CHANGES` is made now."""
    return name not in _left_out


def made_now() -> frozenset[str]:
    """All of them that are."""
    return frozenset(CHANGES) - _left_out


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the compiler says of kernels that it tried and could not use."""
    log = logging.getLogger("torch._inductor.select_algorithm")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def kept_order() -> Iterator[None]:
    """Let a loop that the compiler rewrites, to join it with others on a CPU, go on waiting for what it waited for.

    Torch finds this anew from what the rewritten loop reads, and so forgets sums that are made in place: a loop may
    read them before they are complete. The gradients of indexing and of pooling are such sums, and were wrong without
    a word (torch 2.13, https://github.com/pytorch/pytorch/issues/185509). What is compiled like this is kept on disk
    under keys of its own.
    """
    try:
        from torch._inductor.dependencies import StarDep, WeakDep
        from torch._inductor.scheduler import SchedulerNode  # slow to import
    except ImportError:
        yield
        return
    node_type: Any = SchedulerNode
    if not is_made("loop order") or not hasattr(node_type, "recompute_size_and_body"):
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


@contextlib.contextmanager
def rules_once() -> Iterator[None]:
    """Let the compiler make its rules for the types of results once.

    They are those of one object, which torch initialises anew, by a thousand attributes, whenever it asks for it: for
    every operation of every kernel (torch 2.13). An eighth of the compiler's time in Python.
    """
    try:
        from torch._inductor import lowering  # noqa: F401  # slow to import; of its operations the rules are made
        from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
    except ImportError:
        yield
        return
    kind: Any = DtypePropagationOpsHandler
    if not is_made("dtype rules") or "_instance" not in vars(kind):
        yield
        return
    kind()
    make, kind.__init__ = kind.__init__, lambda _: None
    try:
        yield
    finally:
        kind.__init__ = make


@contextlib.contextmanager
def written_once() -> Iterator[None]:
    """Let the compiler give up at once where it tries to join loops on a CPU by their outer ones.

    It writes the code of all of them before it finds that two are not split alike, and then writes it all once more
    (torch 2.13). Those of the paper's model are all of this kind.
    """
    try:
        from torch._inductor.codegen.cpp import CppScheduling, OuterLoopFusedSchedulerNode  # slow to import
    except ImportError:
        yield
        return
    kind: Any = CppScheduling
    names = ("codegen_outer_loop_node", "kernel_proxy_cls")
    has_all = all(hasattr(kind, name) for name in names) and hasattr(
        OuterLoopFusedSchedulerNode, "check_outer_fusion_loop_level_attr"
    )
    if not is_made("outer loops") or not has_all:
        yield
        return
    write, make = kind.codegen_outer_loop_node, kind.kernel_proxy_cls

    def write_until(scheduling: Any, node: Any) -> None:
        tried: list[Any] = []
        failed = False

        def begin(*args: Any) -> Any:
            proxy = make(*args)
            if len(tried) == len(node.get_outer_nodes()):
                return proxy  # the second time
            tried.append(proxy)
            write_one = proxy.codegen_nodes

            def write_if(nodes: Any) -> None:
                nonlocal failed
                if failed:
                    proxy.loop_nest = tried[0].loop_nest  # the check of all fails as that of the two has
                    return
                write_one(nodes)
                pair = tried[-2:]
                failed = len(pair) == 2 and not node.check_outer_fusion_loop_level_attr(
                    pair, node.outer_loop_fusion_depth
                )

            proxy.codegen_nodes = write_if
            return proxy

        scheduling.kernel_proxy_cls = begin
        try:
            write(scheduling, node)
        finally:
            del scheduling.kernel_proxy_cls

    kind.codegen_outer_loop_node = write_until
    try:
        yield
    finally:
        kind.codegen_outer_loop_node = write


@contextlib.contextmanager
def full_vectors() -> Iterator[None]:
    """Let loops on a CPU be vectorised along a dimension that fills a vector.

    Torch takes the last dimension, and where tensors are read along two of them both, by transposing all that a loop
    reads and writes (2.13). Of pairs of points in a plane, at few vectors at a time, the last dimension fills two
    places of sixteen, and most of the time goes into transposing. What is compiled like this is kept on disk under keys
    of its own.
    """
    try:
        from torch._inductor.codegen.cpp import TilingSelect  # slow to import
    except ImportError:
        yield
        return
    kind: Any = TilingSelect
    if not is_made("tiles") or not hasattr(kind, "_select_tiling_indices"):
        yield
        return
    select = kind._select_tiling_indices

    def select_full(chooser: Any, functions: Any, sizes: Any, width: int) -> list[int]:
        found: list[int] = select(chooser, functions, sizes, width)
        group, reduced = max(sizes, key=lambda some: len(some[1]))
        ranges = [*group, *reduced]
        if len(found) == 2 and ranges[found[0]] < width:
            return found[1:]
        last = len(ranges) - 1
        if found == [last] and last > 0 and not reduced and 2 * ranges[last] <= width <= ranges[last - 1]:
            return [last - 1]
        return found

    keys: Any = torch.compiler.config
    kind._select_tiling_indices = select_full
    try:
        with keys.patch(cache_key_tag=f"{keys.cache_key_tag} full vectors"):
            yield
    finally:
        kind._select_tiling_indices = select


_CALLS = 20  # at most, in a row
_ROW = 1.0  # milliseconds that a row is to last
_AHEAD = 4_000_000  # cycles of the device, about two milliseconds, in which the host can queue a row
_ROWS = 3


@contextlib.contextmanager
def back_to_back() -> Iterator[None]:
    """Let kernels be timed as a captured step runs them: one after another, with what they read in the cache.

    The compiler empties the cache before every launch, and counts what the host needs for one. Of kernels that take a
    few microseconds this says little about which is the fastest.
    """
    try:
        from torch._inductor.runtime.benchmarking import benchmarker  # slow to import
    except ImportError:
        yield
        return
    possible = torch.cuda.is_available() and hasattr(benchmarker, "benchmark_gpu") and hasattr(torch.cuda, "_sleep")
    if not is_made("kernel timing") or not possible:
        yield
        return
    vars(benchmarker)["benchmark_gpu"] = _milliseconds  # hides the method of the class
    try:
        yield
    finally:
        del vars(benchmarker)["benchmark_gpu"]


def _milliseconds(call: Callable[[], Any], *_: Any, **__: Any) -> float:
    """Of one call in a row of them; the least of a few rows."""
    try:
        call()
    except RuntimeError as error:
        if "invalid configuration" in str(error).lower():
            return float("inf")  # such a kernel is left out
        raise
    count = max(1, min(_CALLS, int(_ROW / max(_row(call, 1)[0], 1e-3))))
    while count > 1 and not _row(call, count)[1]:
        count //= 2
    return min(_row(call, count)[0] for _ in range(_ROWS)) / count


def _row(call: Callable[[], Any], count: int) -> tuple[float, bool]:
    """Milliseconds of some calls, and whether the host was ahead of the device all along."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(_AHEAD)
    start.record()
    for _ in range(count):
        call()
    end.record()
    is_ahead = not start.query()
    end.synchronize()
    return float(start.elapsed_time(end)), is_ahead
