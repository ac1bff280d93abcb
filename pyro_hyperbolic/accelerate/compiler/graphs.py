"""Graphs of operations, and compiled code from them."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.compiler.changes import (
    back_to_back,
    full_vectors,
    kept_order,
    made_now,
    quiet,
    rules_once,
    written_once,
)
from pyro_hyperbolic.accelerate.compiler.loops import joined_loops, start_early
from pyro_hyperbolic.private import is_on


def trace(function: Callable[..., Any], leaves: Sequence[Any]) -> torch.fx.GraphModule:
    """The operations of a function of tensors, those alone that the compiler knows.

    With tensors that have no values nothing is computed, but those that the function holds itself must be allowed by
    a private option. Else it is run on the tensors themselves.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # half a second, which only those who compile should pay

    if is_on() and "_allow_non_fake_inputs" in inspect.signature(make_fx).parameters:
        start_early(any(isinstance(x, Tensor) and x.is_cuda for x in leaves))
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
    changes = (quiet, back_to_back, kept_order, rules_once, written_once, full_vectors, joined_loops)
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

    run.compiled_code = code  # type: ignore[attr-defined]  # for :mod:`.replay`
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

            return run_compiler, config.get_hash(), made_now()
    return made_now()


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
