"""Captured CUDA graphs of whole training steps, and of functions of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.programs.arguments import split_tensors
from pyro_hyperbolic.accelerate.programs.compiled import explained
from pyro_hyperbolic.accelerate.programs.isolation import no_collection
from pyro_hyperbolic.ops.nested import map_tensors

_AT_ONCE = 8  # steps in one graph


class CapturedStep:
    """A step captured once and replayed with other data of the same shapes.

    Capturing runs the step a few times; what these runs did to ``state`` and to the random numbers is undone, so that
    the replays go on as if they had not been.

    :param step: the function to capture.
    :param args: its arguments; tensors among them are copied into the graph's own memory at each replay.
    :param state: the tensors that the step changes in place.
    :param finish: called after the capture; what it returns is kept as long as the graph.
    :param warm_up: how many times the step is run before.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        state: list[Tensor],
        finish: Callable[[], Any] = list,
        warm_up: int = 3,
    ) -> None:
        given, rebuild = split_tensors(args, kwargs)
        # On the device also where the given ones are not: the graph would keep what is read on the host, a 0-dim weight
        # for example. Of what must stay on the host, such as the lengths of packed sequences, torch then complains.
        device = (state or given)[0].device
        self._inputs = [t.to(device, copy=True) for t in given]
        own_args, own_kwargs = rebuild(self._inputs)
        kept = [t.detach().clone() for t in state]
        rng = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        self._graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        spare = generator.clone_state()
        try:
            with torch.cuda.stream(stream):
                for _ in range(warm_up):
                    step(*own_args, **own_kwargs)
            torch.cuda.current_stream().wait_stream(stream)
            # A graph that no one needs any more, were it destroyed now by the collector, would end the capture.
            with no_collection(), torch.cuda.graph(self._graph):
                self._out = step(*own_args, **own_kwargs)
        except Exception:
            # The generator would go on waiting for the end of the capture, and refuse every other draw.
            generator.graphsafe_set_state(spare)
            raise
        finally:
            with torch.no_grad():
                for tensor, value in zip(state, kept, strict=True):
                    tensor.copy_(value)
            torch.cuda.set_rng_state(rng)
        self._kept = finish()

    def replay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for own, given in zip(self._inputs, split_tensors(args, kwargs)[0], strict=True):
            own.copy_(given, non_blocking=True)
        self._graph.replay()
        return map_tensors(Tensor.clone, self._out)


class Captured:
    """A function of tensors of fixed shapes: on CUDA captured by its first call, and replayed from then on.

    Tensors that it uses beside its arguments may change in place. What cannot be captured is called each time.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._step: CapturedStep | None = None
        self._fails = False

    def __call__(self, *args: Any) -> Any:
        if self._fails or not args[0].is_cuda:
            return self._function(*args)
        if self._step is None:
            try:
                self._step = CapturedStep(self._function, args, {}, [])
            except RuntimeError:
                self._fails = True
                return self._function(*args)
        return self._step.replay(args, {})


class Repeated:
    """A step that is taken many times and changes tensors in place: on CUDA captured, some steps in one graph.

    :param step: a function without arguments. What it uses beside ``state`` may change in place too.
    :param state: the tensors that it changes.
    """

    def __init__(self, step: Callable[[], None], state: list[Tensor]) -> None:
        self._step, self._state = step, state
        self._graphs: dict[int, CapturedStep] = {}
        self._fails = not state[0].is_cuda

    def __call__(self, times: int) -> None:
        """Take so many steps."""
        for count in (_AT_ONCE, 1):
            while times >= count and (graph := self._graph(count)) is not None:
                graph.replay((), {})
                times -= count
        for _ in range(times):
            self._step()

    def _graph(self, count: int) -> CapturedStep | None:
        if count not in self._graphs and not self._fails:
            try:
                self._graphs[count] = CapturedStep(lambda: self._take(count), (), {}, self._state, warm_up=1)
            except RuntimeError:
                self._fails = True
        return self._graphs.get(count)

    def _take(self, count: int) -> None:
        for _ in range(count):
            self._step()


class CapturedSteps:
    """The captured steps of a trainer, each captured when it is first asked for.

    :param parts: the tensors that the steps change, and what completes a capture.
    """

    def __init__(self, parts: Callable[[], tuple[list[Tensor], Callable[[], Any]]]) -> None:
        self._parts = parts
        self._steps: dict[Any, CapturedStep] = {}

    def replay(self, key: Any, step: Callable[..., Tensor], args: Any, kwargs: Any, **options: Any) -> Tensor:
        """Replay what has been captured for ``key``, or capture ``step`` for it."""
        if key not in self._steps:
            with explained("captured in a CUDA graph", "use capture=False"):
                self._steps[key] = CapturedStep(step, args, kwargs, *self._parts(), **options)
        return self._steps[key].replay(args, kwargs)

    def clear(self) -> None:
        """Forget the graphs, which write to the state that they were captured with."""
        self._steps.clear()
