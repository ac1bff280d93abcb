"""A pair of Pyro programs as a function of its parameters."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.params.param_store import normalize_param_name
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import constraints, transform_to
from torch.overrides import TorchFunctionMode

Program = Callable[..., Any]


class Parameters:
    """The parameters of a pair of programs, found by running it once.

    :ivar tensors: the unconstrained leaves by name, in the form of ``nn.Module.named_parameters``.
    :ivar names: the name by which Pyro's optimisers know each of them; of those of a shared parameter it is the last.
    :ivar modules: the modules that belong to the programs, each once.
    """

    def __init__(self, sites: dict[str, dict[str, Any]], roots: list[nn.Module]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[str, str] = {}
        self._owners: dict[str, list[tuple[nn.Module, str]]] = {}
        self._buffer_owners: dict[str, tuple[nn.Module, str]] = {}
        self._sites: dict[str, tuple[str, Any]] = {}
        owners: dict[int, list[tuple[nn.Module, str]]] = {}
        self.modules = list({id(m): m for root in roots for m in root.modules()}.values())
        for i, module in enumerate(self.modules):
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    owners.setdefault(id(parameter), []).append((module, name))
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    self._buffer_owners[f"{i}.{name}"] = module, name
        keys: dict[int, str] = {}
        for name, site in sites.items():
            leaf = _leaf(site["value"])
            if id(leaf) not in keys:
                keys[id(leaf)] = normalize_param_name(name)
                while keys[id(leaf)] in self.tensors:  # Two of Pyro's names may be one in this form.
                    keys[id(leaf)] += "'"
            key = keys[id(leaf)]
            self.tensors[key] = leaf
            self.names[key] = pyro.get_param_store().param_name(leaf) or name
            self._sites[name] = key, _constraint(name, site)
            if id(leaf) in owners:
                self._owners[key] = owners[id(leaf)]

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The present buffers of the modules."""
        return {key: module._buffers[name] for key, (module, name) in self._buffer_owners.items()}  # type: ignore[misc]

    def load_buffers(self, values: dict[str, Tensor]) -> None:
        """Copy values into the buffers."""
        here = self.buffers
        other = sorted(key for key in here | values if key not in here or key not in values)
        if other or any(here[key].shape != value.shape for key, value in values.items()):
            raise ValueError("the state belongs to other programs: their buffers are not the same in both.")
        with torch.no_grad():
            for key, value in values.items():
                here[key].copy_(value)

    @contextlib.contextmanager
    def kept_buffers(self) -> Iterator[None]:
        """Undo what the programs do to buffers while it is open."""
        kept = {key: value.clone() for key, value in self.buffers.items()}
        try:
            yield
        finally:
            self.load_buffers(kept)

    def mode(self) -> Any:
        """What a captured or compiled step depends on beside its arguments."""
        return tuple(m.training for m in self.modules), tuple(map(id, self.buffers.values()))

    def without_module(self) -> list[str]:
        """Names of the parameters that live in Pyro's store alone."""
        return [name for name, tensor in self.tensors.items() if not isinstance(tensor, nn.Parameter)]

    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of all parameters and buffers: what programs of the same structure share."""
        return {name: t.shape for name, t in (self.tensors | self.buffers).items()}

    def only_these(self) -> OnlyThese:
        """Refuse, while it is open, a parameter that is not among these: no optimiser would step it."""
        return OnlyThese(self.tensors)

    @contextlib.contextmanager
    def replaced(self, values: dict[str, Tensor], buffers: dict[str, Tensor] | None = None) -> Iterator[set[str]]:
        """Run programs with these values in the place of the parameters, and of the buffers that are given.

        Nothing reaches Pyro's parameter store. The result are the names of the parameters that the programs use.
        """
        orphans = [name for name, (key, _) in self._sites.items() if "$$$" in name and key not in self._owners]
        if orphans:
            raise ValueError(
                f"parameter {orphans[0]!r} belongs to a module that was not found; call pyro.module by that name, not"
                " one imported from pyro."
            )
        swaps: list[tuple[Any, str, Tensor]] = [
            (m._parameters, name, values[key]) for key, owners in self._owners.items() for m, name in owners
        ]
        for key, value in (buffers or {}).items():
            module, name = self._buffer_owners[key]
            swaps.append((module._buffers, name, value))
        kept = [(table, name, table[name]) for table, name, _ in swaps]
        try:
            for table, name, value in swaps:
                table[name] = value
            answers = {name: (values[key], constraint) for name, (key, constraint) in self._sites.items()}
            used: set[str] = set()
            with (
                pyro.get_param_store().scope(),
                _AnswerParams(answers, lambda name: used.add(self._sites[name][0])),
                Unvalidated(),
                OutOfPlaceRandom(),
                ConstantsOnDevice(),
                _module_function(self._registered(used)),
            ):
                yield used
        finally:
            for table, name, original in kept:
                table[name] = original

    def _registered(self, used: set[str]) -> Callable[..., nn.Module]:
        """In the place of ``pyro.module``: it registers nothing, but the parameters of the module count as used."""
        keys = {(id(m), name): key for key, owners in self._owners.items() for m, name in owners}

        def module(name: str, nn_module: nn.Module, *_: Any, **__: Any) -> nn.Module:
            used.update(keys[id(m), n] for m in nn_module.modules() for n in m._parameters if (id(m), n) in keys)
            return nn_module

        return module


@contextlib.contextmanager
def captured_parameters(*programs: Program) -> Iterator[dict[str, Any]]:
    """While the context is open, programs are run as usual; on exit ``result["parameters"]`` holds what they used."""
    roots = [root for program in programs for root in _modules_of(program)]
    result: dict[str, Any] = {}
    original = pyro.module

    def module(name: str, nn_module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        roots.append(nn_module)
        return original(name, nn_module, *args, **kwargs)

    with _module_function(module), poutine.trace(param_only=True) as capture:
        yield result
    result["parameters"] = Parameters(dict(capture.trace.nodes), roots)


def _modules_of(program: Program) -> list[nn.Module]:
    if isinstance(program, nn.Module):
        return [program]
    if isinstance(program, functools.partial):
        return _modules_of(program.func)
    owner = getattr(program, "__self__", None)
    return [owner] if isinstance(owner, nn.Module) else []


@contextlib.contextmanager
def _module_function(function: Callable[..., nn.Module]) -> Iterator[None]:
    """Another function in the place of ``pyro.module``, by which plain functions register their modules.

    It notes them when the programs first run. A module that runs on other tensors has nothing to register.
    """
    original = pyro.module
    pyro.module = function
    try:
        yield
    finally:
        pyro.module = original


def _leaf(value: Tensor) -> Tensor:
    return value.unconstrained() if hasattr(value, "unconstrained") else value


def _constraint(name: str, site: dict[str, Any]) -> Any:
    known = pyro.get_param_store()._constraints.get(name)
    return site["kwargs"].get("constraint", constraints.real) if known is None else known


def _unknown(name: str) -> ValueError:
    return ValueError(
        f"parameter {name!r} was not used when the program first ran; create all parameters there, or"
        " use pyro.infer.SVI."
    )


class OnlyThese(Messenger):
    """Passes every ``pyro.param`` whose tensor is known.

    :ivar used: the identities of the tensors that were asked for.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.known = {id(t) for t in tensors.values()}
        self.used: set[int] = set()

    def _pyro_post_param(self, msg: Any) -> None:
        leaf = id(_leaf(msg["value"]))
        if leaf not in self.known:
            raise _unknown(msg["name"])
        self.used.add(leaf)


class _AnswerParams(Messenger):
    """Answers every ``pyro.param`` with the value given for its name, and says so."""

    def __init__(self, answers: dict[str, tuple[Tensor, Any]], asked: Callable[[str], None]) -> None:
        super().__init__()
        self.answers, self.asked = answers, asked

    def _pyro_param(self, msg: Any) -> None:
        if msg["name"] not in self.answers:
            raise _unknown(msg["name"])
        self.asked(msg["name"])
        tensor, constraint = self.answers[msg["name"]]
        msg["value"] = tensor if constraint is constraints.real else transform_to(constraint)(tensor)
        # As Pyro's store does: a plate that subsamples a parameter asks for it.
        msg["value"].unconstrained = weakref.ref(tensor)
        msg["done"] = True


class Unvalidated(Messenger):
    """Laws that were made with validation, outside of the step, do without it while this is open."""

    def __enter__(self) -> Any:
        self._laws: list[Any] = []
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        for law in self._laws:
            law._validate_args = True
        return super().__exit__(*error)

    def _pyro_sample(self, msg: Any) -> None:
        law = msg["fn"]
        while law is not None:
            if getattr(law, "__dict__", {}).get("_validate_args"):
                law._validate_args = False
                self._laws.append(law)
            law = getattr(law, "base_dist", None)


class _LastSite(Messenger):
    name: str | None = None

    def _pyro_sample(self, msg: Any) -> None:
        if type(msg["fn"]).__name__ != "_Subsample":  # of a plate
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
                f"the programs cannot be {what}: {_reason(error)} ({place}). Branches on values of tensors, tensors"
                f" that are read by Python and layers that keep statistics in buffers are the usual causes; {remedy}."
            ) from error


def _reason(error: BaseException) -> str:
    """The first line that an error, or what caused it, has to say; Pyro raises errors again without their text."""
    text = str(error).split(" Trace Shapes:")[0].strip()
    if text:
        return text.splitlines()[0]
    return repr(error) if error.__cause__ is None else _reason(error.__cause__)


class OutOfPlaceRandom(TorchFunctionMode):
    """torch.distributions draws some noise in place, which ``vmap`` refuses; draw it out of place."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draw = _OUT_OF_PLACE.get(func)
        return func(*args, **kwargs) if draw is None else draw(*args, **kwargs)


def _normal(t: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return torch.randn(t.shape, dtype=t.dtype, device=t.device) * std + mean


def _uniform(t: Tensor, low: float = 0.0, high: float = 1.0, **options: Any) -> Tensor:
    low, high = options.get("from", low), options.get("to", high)
    return torch.rand(t.shape, dtype=t.dtype, device=t.device) * (high - low) + low


def _exponential(t: Tensor, lambd: float = 1.0, **_: Any) -> Tensor:
    return -torch.log1p(-torch.rand(t.shape, dtype=t.dtype, device=t.device)) / lambd


_OUT_OF_PLACE: dict[Any, Callable[..., Tensor]] = {
    torch.Tensor.normal_: _normal,
    torch.Tensor.uniform_: _uniform,
    torch.Tensor.exponential_: _exponential,
}


_NUMBERS = (bool, int, float)  # and no subclass: numpy's have a dtype of their own


class ConstantsOnDevice(TorchFunctionMode):
    """Makes scalar constants where they are needed, by a kernel.

    ``torch.tensor(1.0, device="cuda")``, which ``torch.distributions`` calls for every parameter that is a plain
    number, makes it on the host and copies it, which a CUDA graph cannot capture. To be entered around eager code
    only: a compiled function would be compiled again for it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and len(args) == 1 and type(args[0]) in _NUMBERS:
            return torch.full((), args[0], **{key: value for key, value in kwargs.items() if value is not None})
        if func is torch.Tensor.new_tensor and len(args) == 2 and type(args[1]) in _NUMBERS:
            return args[0].new_full((), args[1], **kwargs)
        return func(*args, **kwargs)


def compile_function(function: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    """``function`` traced on these inputs and compiled; of one shape, with all its Python run once.

    Dynamo cannot read a Pyro program (its handlers are context managers); tracing runs it. What the compiler fails on
    (it has bugs, and needs a toolchain) runs as it was traced, with a warning.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # half a second, which only those who compile should pay

    with pyro.validation_enabled(False):
        graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    return _CompiledGraph(graph)


class _CompiledGraph:
    """A graph that is compiled by its first call."""

    def __init__(self, graph: Callable[..., Any]) -> None:
        self._graph = graph
        self._run = torch.compile(graph, fullgraph=True, dynamic=False)

    def __call__(self, *inputs: Any) -> Any:
        try:
            return self._run(*inputs)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            # What a process of the compiler raised comes with its traceback, so the last line says most.
            reason = (str(error.inner_exception).strip() or repr(error.inner_exception)).splitlines()[-1]
            warnings.warn(
                f"torch.compile failed ({reason}); these steps run uncompiled, which is slower but otherwise the same."
                " Pass compile=False to leave it out.",
                RuntimeWarning,
                stacklevel=2,
            )
            self._run = self._graph
            return self._run(*inputs)
