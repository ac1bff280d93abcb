"""The door of compiled code and of the trainers to private names of torch and Pyro, each beside a public way.

As in :mod:`pyro_hyperbolic.private`, whose ``switched_off`` holds here too: without private names all works as before,
but for what a function says here, and slower. ``accelerate/fast_nuts.py``, which is a subclass of Pyro's ``NUTS``, is
the only other file that uses what Pyro keeps to itself.

Below are also changes of what torch's compiler does while it compiles our graphs, under :data:`CHANGES`. Each can be
left out by :func:`left_out`, by which ``benchmarks/changes.py`` measures what it is worth.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import inspect
import logging
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyro
import torch
from pyro.infer import ELBO
from pyro.infer.enum import get_importance_trace
from torch import Tensor
from torch.optim import Optimizer

from pyro_hyperbolic.private import is_on

CHANGES = {
    "loop order": "joined loops wait for sums in place (CPU); without it gradients of indexing are wrong in torch 2.13",
    "dtype rules": "rules for the types of results are made once, not for every operation",
    "outer loops": "loops that cannot be joined are found before all of them are written (CPU)",
    "tiles": "loops are vectorised along the dimension that fills a vector (CPU)",
    "early kernels": "kernels are compiled while others are still written (CPU)",
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


# The compiler.


def trace(function: Callable[..., Any], leaves: Sequence[Any]) -> torch.fx.GraphModule:
    """The operations of a function of tensors, those alone that the compiler knows.

    With tensors that have no values nothing is computed, but those that the function holds itself must be allowed by
    a private option. Else it is run on the tensors themselves.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # half a second, which only those who compile should pay

    if is_on() and "_allow_non_fake_inputs" in inspect.signature(make_fx).parameters:
        _start_early(any(isinstance(x, Tensor) and x.is_cuda for x in leaves))
        return make_fx(function, _decompositions(), tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        return make_fx(function)(*leaves)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """How the compiler writes operations by simpler ones."""
    try:
        from torch._inductor.decomposition import select_decomp_table  # slow to import
    except ImportError:
        return {}
    return select_decomp_table()


@functools.cache
def _start_early(is_cuda: bool) -> None:
    """Let others do, while this thread traces, what the compiler would wait for.

    On CUDA its processes start. For a CPU the C++ compiler reads torch's headers, once and for all: six seconds.
    """
    try:
        from torch._inductor.async_compile import AsyncCompile  # slow to import

        if is_cuda:
            AsyncCompile.wakeup()
            return
        from torch._inductor import compile_fx, config  # noqa: F401  # all of it, before there is another thread
        from torch._inductor.codecache import CppPythonBindingsCodeCache
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list
    except ImportError:
        return
    # The processor says what it can do. That the C++ compiler can too is tried for the newest extensions alone; to try
    # the others takes eight seconds. What goes wrong here goes wrong again where it is reported.
    trusted = {"cpp.vec_isa_ok": True} if getattr(config.cpp, "vec_isa_ok", 0) is None else {}
    with contextlib.suppress(Exception), config.patch(trusted):
        valid_vec_isa_list()
    _in_turn(lambda: CppPythonBindingsCodeCache.load_pybinding_async([], ""))


_tasks: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()


@functools.cache
def _start_thread() -> None:
    def work() -> None:
        while True:
            task = _tasks.get()
            with contextlib.suppress(Exception):  # the compiler will say what is wrong when it comes to the same
                task()

    threading.Thread(target=work, daemon=True).start()


def _in_turn(task: Callable[[], Any]) -> None:
    """Let another thread do this, after all else that it was given before, with the settings that hold here."""
    _start_thread()
    _tasks.put(functools.partial(contextvars.copy_context().run, task))


def compile_graph(
    graph: torch.fx.GraphModule, leaves: Sequence[Any], options: dict[str, Any]
) -> tuple[Callable[..., Any], Any]:
    """A graph as compiled code, for inputs like these, and its first result.

    Not by ``torch.compile``, the public way: dynamo, which reads Python, would trace what has been traced, and look at
    every input before every call, which takes as long as all else that is done outside of the kernels.

    :param options: of the compiler; those that the installed one does not have are left out.
    """
    compiled: Any
    try:
        if not is_on():
            raise ImportError("private names are switched off")
        from torch._inductor import config  # slow to import
    except ImportError:
        compiled = torch.compile(graph, dynamic=False)
        return compiled, compiled(*leaves)
    known = {name: value for name, value in options.items() if hasattr(config, name)}
    changes = (_quiet, _back_to_back, _kept_order, _rules_once, _written_once, _full_vectors, _compiled_early)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change())
        # Advice of the compiler: whether products may be less exact is for the user to say.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
        # Of the compiler to its own authors, while it tunes.
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated", category=UserWarning)
        # Of one part of torch to another.
        warnings.filterwarnings("ignore", message="`torch._prims_common.check`", category=FutureWarning)
        compiled = run_compiler(graph, leaves, known)
        return compiled, compiled(*leaves)


def run_compiler(graph: torch.fx.GraphModule, leaves: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Torch's compiler; tests put another one in its place."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile_fx, config
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    if _is_short(graph, leaves):
        devices = {x.device.index for x in leaves if x.is_cuda}
        try:
            with config.patch(options), torch.random.fork_rng(devices):  # it times products of random numbers on CUDA
                return _compile_at_once(copy.deepcopy(graph), leaves)
        except Exception as error:  # of another version of torch, perhaps; what is wrong with the graph comes again
            logging.getLogger(__name__).debug("the short way through the compiler failed: %s", error)
    # Without an environment of shapes, though all are numbers here, the compiler keeps nothing on disk.
    with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        compiled: Any = compile_fx.compile_fx(graph, list(leaves), config_patches=options, ignore_shape_env=True)
        return compiled


def _is_short(graph: torch.fx.GraphModule, leaves: Sequence[Any]) -> bool:
    """Whether a graph takes tensors alone and changes none."""
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return all(isinstance(x, Tensor) for x in leaves) and not any(mutates(target) for target in calls)


def _compile_at_once(graph: torch.fx.GraphModule, leaves: Sequence[Any]) -> Callable[..., Any]:
    """A graph of operations that the compiler knows, none of them in place.

    ``compile_fx`` would trace it twice more to find that out, a sixth of the compiler's time in Python, and its result
    would look at every input before every call.
    """
    from torch._guards import TracingContext, detect_fake_mode, tracing
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    # Passes that change the graph compute with what the trace has noted, and those of two modes do not mix.
    mode: Any = detect_fake_mode([node.meta.get("val") for node in graph.graph.nodes])
    inputs = [mode.from_tensor(leaf.detach(), static_shapes=True) for leaf in leaves]
    with tracing(TracingContext(mode)), V.set_fake_mode(mode), torch.no_grad():
        graph = joint_graph_passes(graph)
        output: Any = graph.graph.output_node()
        # Whose layouts are kept.
        output.meta["user_visible_output_idxs"] = [*range(len(output.args[0]))]
        code: Any = compile_fx_inner(graph, inputs, is_inference=True)

    def run(*leaves: Any) -> Any:
        with torch.no_grad():
            return code([*leaves])

    return run


def compiler_failures() -> tuple[type[Exception], ...]:
    """What the compiler raises where it fails, not the program; without the private name what both may raise."""
    if is_on():
        with contextlib.suppress(ImportError):
            from torch._dynamo.exc import BackendCompilerFailed

            return (BackendCompilerFailed,)
    return (RuntimeError,)


def compiler_state() -> Any:
    """What compiled code depends on beside its graph: the compiler, its settings, and our changes of it."""
    if is_on():
        with contextlib.suppress(ImportError, AttributeError):
            from torch._inductor import config

            return run_compiler, config.get_hash(), _left_out
    return _left_out


def mutates(operation: Any) -> bool:
    """Whether an operation of a graph changes one of its inputs: by its schema, or else by its name."""
    schema = getattr(operation, "_schema", None) if is_on() else None
    if schema is not None:
        return bool(schema.is_mutable)
    name, _, overload = str(operation).removeprefix("aten.").partition(".")
    return name.endswith("_") or overload == "out"


def is_view(operation: Any) -> bool:
    """Whether the result of an operation may share memory with its argument; ``True`` where it cannot be asked."""
    schema = getattr(operation, "_schema", None) if is_on() else None
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def unchecked() -> dict[Any, Any]:
    """Operations that look whether numbers exist before they take or add to them, and the same without."""
    aten = torch.ops.aten
    try:
        found = {
            aten.index.Tensor: aten._unsafe_index.Tensor,
            aten.index_put.default: aten._unsafe_index_put.default,
        }
    except AttributeError:
        return {}
    return found if is_on() else {}


def keeping() -> Any:
    """An operation that is given a tensor and its strides, and whose result the compiler computes before it is used.

    ``None`` where there is none: then the compiler computes it again wherever it is used.
    """
    try:
        from torch._inductor.inductor_prims import force_stride_order  # slow to import
    except ImportError:
        return None
    return force_stride_order if is_on() else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the compiler says of kernels that it tried and could not use."""
    log = logging.getLogger("torch._inductor.select_algorithm")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _forget_threads() -> None:
    """Of the compiler, in a process that was forked (as those of several chains are) and so has none of them."""
    global _tasks
    _tasks = queue.SimpleQueue()
    _start_thread.cache_clear()
    if "torch._inductor.async_compile" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):
            from torch._inductor.async_compile import AsyncCompile

            AsyncCompile.pool.cache_clear()  # which would wait for them for ever
            from torch._inductor.codecache import CppPythonBindingsCodeCache

            CppPythonBindingsCodeCache.cache.clear()  # and for what they have begun


if hasattr(os, "register_at_fork"):  # which Windows does not have
    os.register_at_fork(after_in_child=_forget_threads)


@contextlib.contextmanager
def _kept_order() -> Iterator[None]:
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
def _rules_once() -> Iterator[None]:
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
def _written_once() -> Iterator[None]:
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
def _full_vectors() -> Iterator[None]:
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


@contextlib.contextmanager
def _compiled_early() -> Iterator[None]:
    """Let the C++ compiler begin with a loop as soon as it is written, while the next ones are.

    Torch gives it all of them at the end (2.13), and what is known by then is not compiled again.
    """
    try:
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen  # slow to import
    except ImportError:
        yield
        return
    kind: Any = PythonWrapperCodegen
    define = getattr(kind, "define_kernel", None)
    if not is_made("early kernels") or define is None or not hasattr(AsyncCompile, "cpp_pybinding"):
        yield
        return

    def define_and_begin(wrapper: Any, name: str, body: str, *args: Any, **kwargs: Any) -> Any:
        if body.startswith("async_compile.cpp_pybinding("):
            # The call that the compiled module will make.
            _in_turn(lambda: eval(body, {"async_compile": AsyncCompile()}))
        return define(wrapper, name, body, *args, **kwargs)

    kind.define_kernel = define_and_begin
    try:
        yield
    finally:
        kind.define_kernel = define


_CALLS = 20  # at most, in a row
_ROW = 1.0  # milliseconds that a row is to last
_AHEAD = 4_000_000  # cycles of the device, about two milliseconds, in which the host can queue a row
_ROWS = 3


@contextlib.contextmanager
def _back_to_back() -> Iterator[None]:
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


# Programs.

# Operations that draw noise which depends on their parameters. torch.distributions calls them by these names.
DRAWN_BY_PARAMETERS = frozenset({"_standard_gamma", "_sample_dirichlet"})


def traces(loss: ELBO, model: Any, guide: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """The traces of model and guide that one of Pyro's losses is made of, one pair for each particle or for all.

    Pyro keeps the function for itself. Without it the loss must be one that does not enumerate.
    """
    if is_on() and hasattr(loss, "_get_traces"):
        return list(loss._get_traces(model, guide, args, kwargs))
    count, nesting = loss.num_particles, loss.max_plate_nesting
    if loss.vectorize_particles and count > 1:
        if nesting == float("inf"):
            raise ValueError("give the loss max_plate_nesting, 1 if the plate of the data is the only one.")
        programs = [pyro.plate("num_particles_vectorized", count, dim=-nesting)(f) for f in (model, guide)]
        return [get_importance_trace("flat", nesting, *programs, args, kwargs)]
    return [get_importance_trace("flat", nesting, model, guide, args, kwargs) for _ in range(count)]


def can_enumerate() -> bool:
    """Whether :func:`model_factors` is there."""
    if not is_on():
        return False
    try:
        from pyro.infer.traceenum_elbo import _compute_model_factors  # noqa: F401
    except ImportError:
        return False
    return True


def model_factors(model_trace: Any, guide_trace: Any) -> Any:
    """Which factor belongs to which enumerated site is known to this function alone, which has no public name."""
    from pyro.infer.traceenum_elbo import _compute_model_factors

    return _compute_model_factors(model_trace, guide_trace)


def names_of_dims(packed: Any) -> str:
    """The names of the dimensions of a packed tensor of Pyro; only where :func:`can_enumerate`."""
    return packed._pyro_dims


def with_names_of_dims(tensor: Tensor, names: str) -> Any:
    """A tensor as a packed one."""
    packed: Any = tensor
    packed._pyro_dims = names
    return packed


def validated_inside(distribution: Any) -> list[Any]:
    """Of a distribution and those inside of it the ones that validate; by public names none can be asked."""
    found = []
    while distribution is not None:
        if is_on() and getattr(distribution, "__dict__", {}).get("_validate_args"):
            found.append(distribution)
        distribution = getattr(distribution, "base_dist", None)
    return found


def set_validation(distributions: Iterable[Any], value: bool) -> None:
    """Let distributions that have been made validate, or not."""
    for distribution in distributions:
        distribution._validate_args = value


def unrolled(name: str) -> Callable[..., Any] | None:
    """A recurrent network as a loop, which ``vmap`` can read; ``None`` where torch does not tell it."""
    if not is_on():
        return None
    try:
        from torch._decomp import decompositions  # slow to import
    except ImportError:
        return None
    return getattr(decompositions, name, None)


# Parameters and optimisers.


def as_parameter(value: Tensor) -> None:
    """Let a tensor count as an ``nn.Parameter``: a PyroModule calls ``pyro.param`` for nothing else.

    Without it a program does not say that it uses the parameter; its gradient does.
    """
    if is_on():
        value._is_param = True


def add_to_all(tensors: list[Tensor], number: float) -> None:
    """Add to tensors in place, in one launch."""
    if is_on() and hasattr(torch, "_foreach_add_"):
        torch._foreach_add_(tensors, number)
        return
    for tensor in tensors:
        tensor.add_(number)


def has_no_hooks(optimiser: Optimizer) -> bool:
    """Whether nothing is called before and after the steps of an optimiser; ``False`` where it cannot be asked."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return is_on() and all(getattr(optimiser, name, True) == {} for name in names)


def adopt_waiting_state(optim: Any, name: str, tensor: Tensor, load: Callable[[Any, Any], None], entry: Any) -> None:
    """Give the new optimiser of a parameter the state that a ``PyroOptim`` was loaded with before there was any.

    It waits under a private name. The public way to it is a step of Pyro, which does nothing without a gradient.
    """
    if is_on() and hasattr(optim, "_state_waiting_to_be_consumed"):
        state = optim._state_waiting_to_be_consumed.pop(name, None)
        if state is not None:
            load(entry, state)
        optim.optim_objs[tensor] = entry
        return
    gradient, tensor.grad = tensor.grad, None
    optim([tensor])
    tensor.grad = gradient


def count_as_stepped(optimiser: Any) -> None:
    """Say that an optimiser has been called, which is not called itself: torch's schedules warn where it was not."""
    if is_on():
        optimiser._opt_called = True
