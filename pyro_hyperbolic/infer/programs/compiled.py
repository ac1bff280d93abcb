"""Programs as compiled functions, and errors that say what cannot be one."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample


def compile_function(function: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    """``function`` traced on these inputs and compiled; of one shape, with all its Python run once.

    Dynamo cannot read a Pyro program (its handlers are context managers); tracing runs it. What the compiler fails on
    (it has bugs, and needs a toolchain) runs uncompiled, with a warning.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # half a second, which only those who compile should pay

    with pyro.validation_enabled(False):
        graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    return _CompiledGraph(graph)


class _CompiledGraph:
    """A graph that is compiled by its first call."""

    def __init__(self, graph: Callable[..., Any]) -> None:
        self._graph = graph
        self._run: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        return self._first_call(*inputs) if self._run is None else self._run(*inputs)

    def _first_call(self, *inputs: Any) -> Any:
        compiled = torch.compile(self._graph, fullgraph=True, dynamic=False)
        try:
            with warnings.catch_warnings():
                # Advice of the compiler: whether products may be less exact is for the user to say.
                warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
                result = compiled(*inputs)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            # What a process of the compiler raised comes with its traceback, so the last line says most.
            reason = (str(error.inner_exception).strip() or repr(error.inner_exception)).splitlines()[-1]
            warnings.warn(
                f"torch.compile failed ({reason}); these steps run uncompiled, which is slower but otherwise the same."
                " Pass compile=False to leave it out.",
                RuntimeWarning,
                stacklevel=3,
            )
            compiled = self._graph
            result = compiled(*inputs)
        self._run = compiled
        return result


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
