"""Programs as compiled functions, and errors that say what cannot be one."""

from __future__ import annotations

import contextlib
import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_hyperbolic.accelerate.compiler import graphs, replay
from pyro_hyperbolic.accelerate.compiler.changes import is_made
from pyro_hyperbolic.accelerate.programs.isolation import no_collection
from pyro_hyperbolic.accelerate.programs.modes import AtMost, IndicesInPython, TooLong
from pyro_hyperbolic.accelerate.programs.rewrites import (
    compute_once,
    fold_indices,
    keep_sources,
    lift_constants,
    order_by_depth,
    write_out_of_place,
    write_out_products,
)
from pyro_hyperbolic.accelerate.programs.warning import warn_user
from pyro_hyperbolic.ops.nested import flatten, map_tensors, unflatten

# Operations stay in the order of the trace, in which a likelihood and its derivative are near enough to each other to
# become one kernel. The compiler's own order puts the densities of the latents between the two. Its preparation of
# parts of a graph for CUDA graphs of its own is left out.
_USUAL: dict[str, Any] = {"reorder_for_locality": False, "graph_partition": False}
# On a CPU a result of more than some operations is kept: the long chains of geometry would be written out again in
# every loop that uses them, which takes minutes to compile where a curvature is drawn. Of the operations that read the
# same tensor each is tried with the next few, to make one loop of the two: all of geometry reads the curvature.
_USUAL_ON_CPU: dict[str, Any] = _USUAL | {
    "realize_cpu_opcount_threshold": 16,
    "max_fusion_buffer_group_pairwise_attempts": 8,
}
# What the compiler is asked for on top where steps should begin soon. Every sum over a dimension is compiled in one
# form and not in up to four, of which the fastest would be taken: the paper's model trains 5 s earlier, and its steps
# take 2% longer. Of ensembles, evaluations and posteriors, whose sums are larger, this has not been measured.
_QUICK: dict[str, Any] = {"test_configs.force_filter_reduction_configs": True}
# The same by "tuned": tuned products, without a table of timings for each of them, and small kernels in one launch.
_TUNED: dict[str, Any] = {
    "max_autotune_gemm": True,
    "combo_kernels": True,
    "autotune_num_choices_displayed": 0,
    "max_autotune_report_choices_stats": False,
}
# What it is asked for on top on a CPU where every core has rows of its own.
_ONE_CORE: dict[str, Any] = {"cpp.threads": 1}

# Calls of torch that a program may make before its derivatives are taken. The compiler takes some 50 ms for each: of
# those of the paper's model, 600, half a minute, and of so many, longer than most runs would gain by it. Flows of eight
# layers as prior and as posterior stay below.
_MOST_CALLS = 10_000

# Compiled graphs by what they compute, those last used at the end.
_KNOWN: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
_MOST_KNOWN = 64


def compile_function(
    function: Callable[..., Any], *inputs: Any, tune: bool = False, quick: bool = False, one_core: bool = False
) -> CompiledGraph | Uncompiled:
    """``function`` traced on these inputs and compiled; of one shape, with all its Python run once.

    Dynamo cannot read a Pyro program (its handlers are context managers); tracing runs it. What the compiler fails on
    (it has bugs, and needs a toolchain), and what would take it many minutes, runs uncompiled, with a warning.
    Functions with the same trace share what was compiled: of an estimate that is repeated, or of another trainer of
    the same programs.

    :param tune: on CUDA, time several kernels for every matrix product and take the fastest, and launch small kernels
        together. It pays where they are short, as those of one model are; products of an ensemble are best left to
        cuBLAS. Torch keeps the choices on disk.
    :param quick: on CUDA, try fewer forms of a kernel than torch does.
    :param one_core: on a CPU, make loops of one core of all that can be one, for a recording.
    """
    leaves, spec = flatten(inputs)
    out_spec: Any = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_spec
        with AtMost(_MOST_CALLS), IndicesInPython():
            out, out_spec = flatten(function(*unflatten(leaves, spec)))
        # Optimisers want the layout of the parameters, and compiled code can write it at once.
        return [t.contiguous() if isinstance(t, Tensor) else t for t in out]

    try:
        with pyro.validation_enabled(False), no_collection():
            graph = graphs.trace(flat, leaves)
    except TooLong:
        warn_user(
            f"the programs make more than {_MOST_CALLS:,} calls of torch, which would take its compiler many minutes;"
            " they run uncompiled, which is slower but otherwise the same. A loop over sites is the usual cause: write"
            " them as one site in a plate where that is possible.",
            RuntimeWarning,
        )
        return Uncompiled(function)
    write_out_of_place(graph)
    compute_once(graph)
    if is_made("pairs"):
        fold_indices(graph)
    if is_made("trace order"):
        order_by_depth(graph)
    is_cuda = any(isinstance(x, Tensor) and x.is_cuda for x in leaves)
    if is_cuda:
        return CompiledGraph(graph, out_spec, _TUNED if tune else _QUICK if quick else {})
    if one_core:
        replay.begin()
        write_out_products(graph)
    return CompiledGraph(graph, out_spec, _ONE_CORE if one_core else {})


def checked_compile(compile: Any) -> bool | Literal["tuned"]:
    """What a trainer may be asked for."""
    if not (isinstance(compile, bool) or compile == "tuned"):
        raise ValueError(f"compile must be False, True or 'tuned', got {compile!r}.")
    return compile


class CompiledGraph:
    """A graph that is compiled by its first call, unless one that computes the same is known.

    What the trace has met beside its inputs (parameters, constants) becomes inputs too, so that compiled code holds no
    tensor of anyone and can be shared. It is compiled once more for inputs of another layout, and
    for products of another precision.

    :ivar numbers: how many it computes in all its operations together, which tells how long it takes.
    """

    def __init__(self, graph: torch.fx.GraphModule, out_spec: Any, options: dict[str, Any]) -> None:
        self._constants = lift_constants(graph)
        values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "call_function"]
        self.numbers = sum(value.numel() for value in values if isinstance(value, Tensor))
        self._graph, self.out_spec, self._options = graph, out_spec, options
        self._runs: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        leaves = (*self._constants, *flatten(inputs)[0])
        forms = _forms(leaves)
        run = self._runs.get(forms)
        out = self._first_call(forms, leaves) if run is None else run(*leaves)
        return unflatten(out, self.out_spec)

    def record(self, inputs: Any, own: list[Tensor]) -> replay.Recording | None:
        """What computes this from tensors that stay, to be called again without the compiled code, if that can be.

        :param own: the inputs that may be changed meanwhile.
        """
        self(*inputs)
        leaves = (*self._constants, *flatten(inputs)[0])
        return replay.record(self._runs[_forms(leaves)], leaves, own)

    def fixed(self, *inputs: Any) -> Callable[..., Any]:
        """The same for tensors of the forms of these, which are not looked at again: a third of a short call's time.

        On a CPU loops are run without Python, in another third of it, and one thread at a time may call it.
        """
        self(*inputs)
        constants, (leaves, structure) = self._constants, flatten(inputs)
        run = self._runs[_forms((*constants, *leaves))]

        def usual(*inputs: Any) -> Any:
            return unflatten(run(*constants, *flatten(inputs)[0]), self.out_spec)

        if not all(isinstance(leaf, Tensor) and leaf.device.type == "cpu" for leaf in leaves):
            return usual
        own = [leaf.detach().clone() for leaf in leaves]
        recording = None if _forms((*own,)) != _forms((*leaves,)) else self.record(unflatten(own, structure), own)
        if recording is None:
            return usual
        outputs, parts = recording.outputs, replay.Parts([recording])

        @torch.no_grad()
        def replayed(*inputs: Any) -> Any:
            for mine, given in zip(own, flatten(inputs)[0], strict=True):
                mine.copy_(given)
            return unflatten([x.clone() for x in outputs], self.out_spec) if parts() else usual(*inputs)

        return replayed

    def _first_call(self, forms: Any, leaves: tuple[Any, ...]) -> Any:
        key = self._key(forms)
        known = _KNOWN.pop(key, None)
        if known is not None:
            self._runs[forms] = _KNOWN[key] = known
            return known(*leaves)
        try:
            compiled, result = self._compile(self._options, leaves)
        except graphs.compiler_failures() as error:
            if not self._options:
                return self._run_uncompiled(forms, leaves, error)
            try:
                compiled, result = self._compile({}, leaves)  # what was asked for on top may be what it failed on
            except graphs.compiler_failures() as error:
                return self._run_uncompiled(forms, leaves, error)
        self._runs[forms] = _KNOWN[key] = compiled
        if len(_KNOWN) > _MOST_KNOWN:
            _KNOWN.popitem(last=False)
        return result

    def _compile(self, options: dict[str, Any], leaves: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
        """The compiled graph, and its first result."""
        graph = copy.deepcopy(self._graph)
        is_cuda = any(isinstance(t, Tensor) and t.is_cuda for t in leaves)
        is_double = any(isinstance(t, Tensor) and t.dim() and t.dtype == torch.float64 for t in leaves)
        if options == _TUNED and not is_double and is_made("small products"):
            write_out_products(graph)
        if is_made("pairs"):
            keep_sources(graph)
        with no_collection():
            return graphs.compile_graph(graph, leaves, (_USUAL if is_cuda else _USUAL_ON_CPU) | options)

    def _run_uncompiled(self, forms: Any, leaves: tuple[Any, ...], error: Exception) -> Any:
        cause = getattr(error, "inner_exception", error)
        # What a process of the compiler raised comes with its traceback, so the last line says most.
        reason = (str(cause).strip() or repr(cause)).splitlines()[-1]
        warn_user(
            f"torch's compiler failed ({reason}); these steps run uncompiled, which is slower but otherwise the same."
            " Pass compile=False to leave it out.",
            RuntimeWarning,
        )
        self._runs[forms] = self._graph
        return self._graph(*leaves)

    def _key(self, forms: Any) -> Any:
        """All that compiled code depends on: the program with its numbers, the forms of its inputs, the compiler."""
        return self._graph.code, forms, graphs.compiler_state(), tuple(self._options)


class Uncompiled:
    """A function that runs as it is, in the place of a :class:`CompiledGraph`."""

    numbers = math.inf  # more than anyone would wait for

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *inputs: Any) -> Any:
        with pyro.validation_enabled(False):
            return map_tensors(Tensor.contiguous, self._function(*inputs))

    def fixed(self, *_: Any) -> Callable[..., Any]:
        """The function for any inputs."""
        return self.__call__


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
