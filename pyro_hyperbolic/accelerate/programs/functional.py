"""A pair of Pyro programs as a function of its parameters."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from pyro.params.param_store import normalize_param_name
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn
from torch.distributions import constraints, transform_to

from pyro_hyperbolic.accelerate import private
from pyro_hyperbolic.accelerate.programs.modes import (
    ConstantsOnDevice,
    DecompositionsOnDevice,
    OutOfPlaceRandom,
    Unvalidated,
)
from pyro_hyperbolic.accelerate.programs.surroundings import Surroundings

Program = Callable[..., Any]
Site = tuple[Tensor, Any]  # an unconstrained leaf and the constraint of its value


class Parameters:
    """The parameters of a pair of programs, found by running it once.

    :ivar tensors: the unconstrained leaves by name, in the form of ``nn.Module.named_parameters``.
    :ivar names: the name by which Pyro's optimisers know each of them; of those of a shared parameter it is the last.
    :ivar modules: the modules that belong to the programs, each once.
    :ivar surroundings: what a captured or compiled step depends on beside its arguments.
    """

    def __init__(self, sites: dict[str, Site], roots: list[nn.Module], programs: Sequence[Program] = ()) -> None:
        self.sites, self.roots = sites, roots
        self.surroundings = Surroundings([*programs, *roots])
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[str, str] = {}
        self._owners: dict[str, list[tuple[nn.Module, str]]] = {}
        self._buffer_owners: dict[str, tuple[nn.Module, str]] = {}
        self._answers: dict[str, tuple[str, Any]] = {}
        owners: dict[int, list[tuple[nn.Module, str]]] = {}
        self.modules = list({id(m): m for root in roots for m in root.modules()}.values())
        self._all = _AllModules(roots)
        self._paths = {id(module): path for path, module in self._all.named_modules()}
        for i, module in enumerate(self.modules):
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                owners.setdefault(id(parameter), []).append((module, name))
            for name, _ in module.named_buffers(recurse=False, remove_duplicate=False):
                self._buffer_owners[f"{i}.{name}"] = module, name
        keys: dict[int, str] = {}
        for name, (leaf, constraint) in sites.items():
            if id(leaf) not in keys:
                keys[id(leaf)] = normalize_param_name(name)
                while keys[id(leaf)] in self.tensors:  # Two of Pyro's names may be one in this form.
                    keys[id(leaf)] += "'"
            key = keys[id(leaf)]
            self.tensors[key] = leaf
            self.names[key] = pyro.get_param_store().param_name(leaf) or name
            self._answers[name] = key, constraint
            if id(leaf) in owners:
                self._owners[key] = owners[id(leaf)]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return next(iter(self.tensors.values())).device

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The present buffers of the modules."""
        return {key: getattr(module, name) for key, (module, name) in self._buffer_owners.items()}

    def load_buffers(self, values: dict[str, Tensor]) -> None:
        """Copy values into the buffers."""
        here = self.buffers
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

    def are_current(self) -> bool:
        """Whether the programs would find the same tensors, as far as can be told without running them.

        They do not after ``clear_param_store()``, ``store[name] = value``, or a new parameter in the place of one of a
        module.
        """
        store = dict(pyro.get_param_store().named_parameters())
        for name, (key, _) in self._answers.items():
            tensor = self.tensors[key]
            if key not in self._owners:
                if store.get(name) is not tensor:
                    return False
            # What another model has left under the name does not matter, but Pyro's store is to know it.
            elif name not in store or any(getattr(m, own, None) is not tensor for m, own in self._owners[key]):
                return False
        return True

    def without_module(self) -> list[str]:
        """Names of the parameters that live in Pyro's store alone."""
        return [name for name, tensor in self.tensors.items() if not isinstance(tensor, nn.Parameter)]

    def unregistered(self) -> list[str]:
        """Names of the parameters of modules that the programs do not tell Pyro about."""
        known = {id(tensor) for tensor in self.tensors.values()}
        named = [item for root in self.roots for item in root.named_parameters()]
        return list(dict.fromkeys(name for name, parameter in named if id(parameter) not in known))

    def shapes(self) -> dict[str, torch.Size]:
        """Shapes of all parameters and buffers: what programs of the same structure share."""
        return {name: t.shape for name, t in (self.tensors | self.buffers).items()}

    def run(
        self,
        function: Callable[[], Any],
        values: dict[str, Tensor],
        buffers: dict[str, Tensor] | None = None,
        changed: set[str] | None = None,
    ) -> tuple[Any, Replaced]:
        """Run programs with these values in the place of the parameters, and of the buffers that are given.

        Nothing reaches Pyro's parameter store, and what the programs do to the buffers, not these.

        :param function: runs the programs.
        :param changed: names of the buffers that they change.
        :returns: the value of ``function``, and what the programs have done.
        """
        orphans = [name for name, (key, _) in self._answers.items() if "$$$" in name and key not in self._owners]
        if orphans:
            raise ValueError(
                f"parameter {orphans[0]!r} belongs to a module that was not found; call pyro.module by that name, not"
                " one imported from pyro."
            )
        for value in values.values():
            private.as_parameter(value)
        named = {self._path(m, name): values[key] for key, owners in self._owners.items() for m, name in owners}
        named |= {self._path(*self._buffer_owners[key]): value.clone() for key, value in (buffers or {}).items()}
        answers = {name: (values[key], constraint) for name, (key, constraint) in self._answers.items()}
        run = Replaced()

        def run_and_read() -> Any:
            result = function()
            run.buffers = {key: getattr(*self._buffer_owners[key]) for key in changed or ()}
            return result

        with (
            pyro.get_param_store().scope(),
            _AnswerParams(answers, lambda name: run.used.add(self._answers[name][0])),
            Unvalidated(),
            OutOfPlaceRandom(),
            ConstantsOnDevice(),
            DecompositionsOnDevice(),
            _module_function(self._registered(run.used)),
        ):
            return torch.func.functional_call(self._all, named, (run_and_read,), tie_weights=False), run

    def _path(self, module: nn.Module, name: str) -> str:
        return f"{self._paths[id(module)]}.{name}"

    def _registered(self, used: set[str]) -> Callable[..., nn.Module]:
        """In the place of ``pyro.module``: it registers nothing, but the parameters of the module count as used."""
        keys = {(id(m), name): key for key, owners in self._owners.items() for m, name in owners}

        def module(name: str, nn_module: nn.Module, *_: Any, **__: Any) -> nn.Module:
            for m in nn_module.modules():
                own = [n for n, _ in m.named_parameters(recurse=False, remove_duplicate=False)]
                used.update(keys[id(m), n] for n in own if (id(m), n) in keys)
            return nn_module

        return module


class _AllModules(nn.Module):
    """Modules under one root, with which torch puts other tensors in the place of theirs while something runs."""

    def __init__(self, roots: list[nn.Module]) -> None:
        super().__init__()
        self.roots = nn.ModuleList(roots)

    def forward(self, run: Callable[[], Any]) -> Any:
        return run()


class Replaced:
    """What programs have done while other tensors stood in the place of their parameters and buffers.

    :ivar used: the names of the parameters that they asked for.
    :ivar buffers: the new values of the buffers that they change.
    """

    def __init__(self) -> None:
        self.used: set[str] = set()
        self.buffers: dict[str, Tensor] = {}


class Found(Messenger):
    """Notes the parameters of programs that run while it is open, and the modules that they register.

    :param programs: the programs, which may be modules or methods of modules.
    :param known: the parameters that are known already.
    :param watch: note too which buffers the programs change; by their values, for BatchNorm changes them unseen.
    :param undo: undo that.
    """

    def __init__(
        self, *programs: Program, known: Parameters | None = None, watch: bool = False, undo: bool = False
    ) -> None:
        super().__init__()
        self._known = known
        self._programs = programs
        self._watch, self._undo = watch or undo, undo
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._changed: set[int] = set()
        self._tensors = set() if known is None else {id(t) for t in known.tensors.values()}
        self._roots = [root for program in programs for root in _modules_of(program)]
        self._new: dict[str, Site] = {}
        self._met: set[str] = set()
        self._used: set[int] = set()

    def __enter__(self) -> Any:
        original = pyro.module

        def module(name: str, nn_module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
            self._roots.append(nn_module)
            self._note_buffers(nn_module)
            return original(name, nn_module, *args, **kwargs)

        for root in self._roots:
            self._note_buffers(root)
        self._patched = _module_function(module)
        self._patched.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        self._patched.__exit__(*error)
        with torch.no_grad():
            for buffer, value in self._buffers.values():
                if not torch.equal(buffer, value):
                    self._changed.add(id(buffer))
                    if self._undo:
                        buffer.copy_(value)
        return super().__exit__(*error)

    def _note_buffers(self, root: nn.Module) -> None:
        for buffer in root.buffers() if self._watch else ():
            self._buffers.setdefault(id(buffer), (buffer, buffer.clone()))

    def _pyro_post_param(self, msg: Any) -> None:
        name, value = msg["name"], msg["value"]
        leaf = value.unconstrained() if hasattr(value, "unconstrained") else value
        self._met.add(name)
        self._used.add(id(leaf))
        if self._known is None or id(leaf) not in self._tensors or name not in self._known.sites:
            known = _constraint_of(name)
            self._new[name] = leaf, msg["kwargs"].get("constraint", constraints.real) if known is None else known

    @property
    def new(self) -> list[str]:
        """Names of the parameters that were not known."""
        return list(self._new)

    @property
    def parameters(self) -> Parameters:
        """Those that were known, as far as the programs still have them, and those that are new."""
        if self._known is None:
            return Parameters(self._new, self._roots, self._programs)
        store = dict(pyro.get_param_store().named_parameters())
        sites = self._known.sites.items()
        kept = {name: site for name, site in sites if name in self._met or store.get(name) is site[0]}
        return Parameters(kept | self._new, [*self._known.roots, *self._roots], self._programs)

    def used(self, parameters: Parameters) -> set[str]:
        """Which of the parameters the programs asked for."""
        return {name for name, t in parameters.tensors.items() if id(t) in self._used}

    def changed(self, parameters: Parameters) -> set[str]:
        """Which of the buffers they have changed."""
        return {name for name, t in parameters.buffers.items() if id(t) in self._changed}


def check_program(name: str, program: Any) -> None:
    """Refuse what is no Pyro program, with a remedy where it is nearly one."""
    if isinstance(program, type):
        raise ValueError(f"{name} must be a function or a module, got the class {program.__name__}; pass an object.")
    if not callable(program):
        raise ValueError(f"{name} must be a function or a module, got {program!r}.")
    is_called = type(program).__call__ in (nn.Module.__call__, PyroModule.__call__)
    if is_called and getattr(program.forward, "__func__", None) is nn.Module.forward:
        raise ValueError(
            f"{name} must be a function or a module with a forward method, which {type(program).__name__} does not"
            f" have; pass one of its methods, such as vae.{name.split()[0]}."
        )


def device_of(*programs: Program) -> torch.device | None:
    """Where the programs will run, as far as their modules tell."""
    modules = (module for program in programs for module in _modules_of(program))
    return next((parameter.device for module in modules for parameter in module.parameters()), None)


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


def unknown_parameter(name: str) -> ValueError:
    """The error of a parameter that nobody could step."""
    return ValueError(
        f"parameter {name!r} was not there when the programs first ran with such arguments; let them create the same"
        " parameters in every run, or use pyro.infer.SVI."
    )


def no_parameters(found: Parameters) -> ValueError:
    """The error of programs in which there is nothing to train."""
    reason = "register modules with pyro.module, call PyroModules, or use pyro.param"
    return ValueError(f"the programs have no parameters; {unregistered(found) or reason}.")


def unregistered(found: Parameters) -> str:
    """What to do about parameters of modules that Pyro does not know; empty if there are none."""
    names = found.unregistered()
    if not names:
        return ""
    return (
        f"{names[0]!r} is a parameter of a module that Pyro is not told of (a PyroModule tells it where it is called,"
        " not in its other methods); begin the method that reads it with pyro.module('name', self)"
    )


def _constraint_of(name: str) -> Any:
    """The constraint that Pyro's store has for a parameter, or ``None``."""
    store = pyro.get_param_store()
    kept = [(t, vars(t)["unconstrained"]) for _, t in store.named_parameters() if "unconstrained" in vars(t)]
    found = store.get_state()["constraints"].get(name)
    for tensor, reference in kept:
        tensor.unconstrained = reference  # which the store takes away when it tells its state
    return found


class _AnswerParams(Messenger):
    """Answers every ``pyro.param`` with the value given for its name, and says so."""

    def __init__(self, answers: dict[str, tuple[Tensor, Any]], asked: Callable[[str], None]) -> None:
        super().__init__()
        self.answers, self.asked = answers, asked

    def _pyro_param(self, msg: Any) -> None:
        if msg["name"] not in self.answers:
            raise unknown_parameter(msg["name"])
        self.asked(msg["name"])
        tensor, constraint = self.answers[msg["name"]]
        msg["value"] = tensor if constraint is constraints.real else transform_to(constraint)(tensor)
        # As Pyro's store does: a plate that subsamples a parameter asks for it.
        msg["value"].unconstrained = weakref.ref(tensor)
        msg["done"] = True
