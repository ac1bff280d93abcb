"""Programs as compiled functions, and errors that say what cannot be one."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_hyperbolic.accelerate.programs.order import kept_order
from pyro_hyperbolic.accelerate.programs.rewrites import lift_constants, order_by_depth, write_out_products
from pyro_hyperbolic.accelerate.programs.timing import back_to_back
from pyro_hyperbolic.accelerate.programs.warning import warn_user

# Operations stay in the order of the trace, in which a likelihood and its derivative are near enough to each other to
# become one kernel. The compiler's own order puts the densities of the latents between the two.
_USUAL: dict[str, Any] = {"reorder_for_locality": False}
# On a CPU a result of more than a few operations is kept: the long chains of geometry would be written out again in
# every loop that uses them, which takes minutes to compile where a curvature is drawn.
_USUAL_ON_CPU: dict[str, Any] = _USUAL | {"realize_cpu_opcount_threshold": 8}
# What the compiler is asked for on top where steps are short: tuned products, without a table of timings for each of
# them, and small kernels in one launch.
_TUNED: dict[str, Any] = {
    "max_autotune_gemm": True,
    "combo_kernels": True,
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}

# Compiled graphs by what they compute, those last used at the end.
_KNOWN: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
_MOST_KNOWN = 64


def compile_function(function: Callable[..., Any], *inputs: Any, tune: bool = False) -> CompiledGraph:
    """``function`` traced on these inputs and compiled; of one shape, with all its Python run once.

    Dynamo cannot read a Pyro program (its handlers are context managers); tracing runs it. What the compiler fails on
    (it has bugs, and needs a toolchain) runs uncompiled, with a warning. Functions with the same trace share
    what was compiled: of an estimate that is repeated, or of another trainer of the same programs.

    :param tune: on CUDA, time several kernels for every matrix product and take the fastest, and launch small kernels
        together. It pays where they are short, as those of one model are; products of an ensemble are best left to
        cuBLAS. Torch keeps the choices on disk.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # half a second, which only those who compile should pay

    leaves, spec = pytree.tree_flatten(inputs)
    out_spec: Any = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_spec
        out, out_spec = pytree.tree_flatten(function(*pytree.tree_unflatten(leaves, spec)))
        # Optimisers want the layout of the parameters, and compiled code can write it at once.
        return [t.contiguous() if isinstance(t, Tensor) else t for t in out]

    with pyro.validation_enabled(False):
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
    order_by_depth(graph)
    is_tuned = tune and any(isinstance(x, Tensor) and x.is_cuda for x in leaves)
    return CompiledGraph(graph, out_spec, _TUNED if is_tuned else {})


class CompiledGraph:
    """A graph that is compiled by its first call, unless one that computes the same is known.

    What the trace has met beside its inputs (parameters, constants) becomes inputs too, so that compiled code holds no
    tensor of anyone and can be shared. It is compiled once more for inputs of another layout, and
    for products of another precision.
    """

    def __init__(self, graph: torch.fx.GraphModule, out_spec: Any, options: dict[str, Any]) -> None:
        self._constants = lift_constants(graph)
        self._graph, self._out_spec, self._options = graph, out_spec, options
        self._runs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        leaves = (*self._constants, *pytree.tree_leaves(inputs))
        forms = _forms(leaves)
        run = self._runs.get(forms)
        out = self._first_call(forms, leaves) if run is None else run(*leaves)
        return pytree.tree_unflatten(out, self._out_spec)

    def fixed(self, *inputs: Tensor) -> Callable[..., Sequence[Tensor]]:
        """The same for tensors of the forms of these, which are not looked at again: a third of a short call's time."""
        self(*inputs)
        constants = self._constants
        run = self._runs[_forms((*constants, *inputs))]
        return lambda *inputs: run(*constants, *inputs)

    def _first_call(self, forms: Any, leaves: tuple[Any, ...]) -> Any:
        key = self._key(forms)
        known = _KNOWN.pop(key, None)
        if known is not None:
            self._runs[forms] = _KNOWN[key] = known
            return known(*leaves)
        try:
            compiled, result = self._compile(self._options, leaves)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            if not self._options:
                return self._run_uncompiled(forms, leaves, error)
            try:
                compiled, result = self._compile({}, leaves)  # what was asked for on top may be what it failed on
            except torch._dynamo.exc.BackendCompilerFailed as error:
                return self._run_uncompiled(forms, leaves, error)
        self._runs[forms] = _KNOWN[key] = compiled
        if len(_KNOWN) > _MOST_KNOWN:
            _KNOWN.popitem(last=False)
        return result

    def _compile(self, options: dict[str, Any], leaves: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
        """The compiled graph, and its first result."""
        from torch._guards import TracingContext, tracing
        from torch._inductor import compile_fx  # slow to import, as above
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        graph = copy.deepcopy(self._graph)
        is_cuda = any(isinstance(t, Tensor) and t.is_cuda for t in leaves)
        if options and not any(isinstance(t, Tensor) and t.dim() and t.dtype == torch.float64 for t in leaves):
            write_out_products(graph)  # of geometry: float64 in a program of float32
        with warnings.catch_warnings(), _quiet(), back_to_back(), kept_order():
            # Advice of the compiler: whether products may be less exact is for the user to say.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
            # Of the compiler to its own authors, while it tunes.
            warnings.filterwarnings("ignore", message="TypedStorage is deprecated", category=UserWarning)
            # Of one part of torch to another.
            warnings.filterwarnings("ignore", message="`torch._prims_common.check`", category=FutureWarning)
            # Not by torch.compile: dynamo, which reads Python, would trace what has been traced, and look at every
            # input before every call, which takes as long as all else that is done outside of the kernels.
            # Without an environment of shapes, though all are numbers here, the compiler keeps nothing on disk.
            with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
                compiled: Any = compile_fx.compile_fx(
                    graph,
                    list(leaves),
                    config_patches=_known((_USUAL if is_cuda else _USUAL_ON_CPU) | options),
                    ignore_shape_env=True,
                )
            return compiled, compiled(*leaves)

    def _run_uncompiled(
        self, forms: Any, leaves: tuple[Any, ...], error: torch._dynamo.exc.BackendCompilerFailed
    ) -> Any:
        # What a process of the compiler raised comes with its traceback, so the last line says most.
        reason = (str(error.inner_exception).strip() or repr(error.inner_exception)).splitlines()[-1]
        warn_user(
            f"torch's compiler failed ({reason}); these steps run uncompiled, which is slower but otherwise the same."
            " Pass compile=False to leave it out.",
            RuntimeWarning,
        )
        self._runs[forms] = self._graph
        return self._graph(*leaves)

    def _key(self, forms: Any) -> Any:
        """All that compiled code depends on: the program with its numbers, the forms of its inputs, the compiler."""
        from torch._inductor import compile_fx, config  # slow to import, as above

        return self._graph.code, forms, compile_fx.compile_fx, config.get_hash(), tuple(self._options)


def _forms(leaves: tuple[Any, ...]) -> tuple[Any, ...]:
    """What torch.compile would look at before every call, as far as code of this kind depends on it."""
    settings = _precision(), torch.are_deterministic_algorithms_enabled()
    layouts = [(t.shape, t.stride(), t.dtype, t.device) if isinstance(t, Tensor) else t for t in leaves]
    return (*settings, *layouts)


def _precision() -> Any:
    """Of float32 products on CUDA, which kernels that the compiler writes for them have built in."""
    matmul = torch.backends.cuda.matmul
    # torch's older question is an error once a program has answered the newer one, which torch 2.8 does not have.
    return matmul.fp32_precision if hasattr(matmul, "fp32_precision") else matmul.allow_tf32


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that the installed compiler has."""
    from torch._inductor import config  # slow to import, as above

    return {name: value for name, value in options.items() if hasattr(config, name)}


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
    if "torch._inductor.async_compile" in sys.modules:
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.pool.cache_clear()  # which would wait for them for ever


if hasattr(os, "register_at_fork"):  # which Windows does not have
    os.register_at_fork(after_in_child=_forget_threads)


class _LastSite(Messenger):
    name: str | None = None

    def _pyro_sample(self, msg: Any) -> None:
        if not site_is_subsample(msg):
            self.name = msg["name"]


@contextlib.contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Turn what torch raises in a program that is transformed into an error with the name of a site and a remedy."""
    with _LastSite() as last:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            place = "before their first site" if last.name is None else f"at or after site {last.name!r}"
            raise ValueError(
                f"the programs cannot be {what}: {_reason(error)} ({place}). Branches on values of tensors and"
                f" tensors that are read by Python are the usual causes; {remedy}."
            ) from error


def _reason(error: BaseException) -> str:
    """The first line that an error, or what caused it, has to say; Pyro raises errors again without their text."""
    text = str(error).split(" Trace Shapes:")[0].strip()
    if text:
        return text.splitlines()[0]
    return repr(error) if error.__cause__ is None else _reason(error.__cause__)
