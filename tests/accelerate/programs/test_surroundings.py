"""What programs read from Python is part of the key of a captured or compiled step."""

from __future__ import annotations

import argparse
import enum
import functools
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.accelerate import EnsembleSVI, FastNUTS, FastSVI
from pyro_hyperbolic.accelerate.programs.surroundings import Surroundings
from pyro_hyperbolic.distributions import manifold_flow

WIDTH: Any = 1.0
OPTIONS = {"width": 1.0}
MODULE: Any = types.ModuleType("settings_of_the_user")  # as after import settings_of_the_user as MODULE


class Kind(enum.Enum):
    NARROW = 1.0
    WIDE = 5.0


class Settings:
    """An object of the user's."""

    def __init__(self, width: float) -> None:
        self.width = width


class Slotted:
    """One without a dictionary of attributes."""

    __slots__ = ("width",)

    def __init__(self, width: float) -> None:
        self.width = width


class Table(dict):
    """A dictionary of the user's kind."""


class Constants:
    """Settings that nobody makes an object of."""

    width = 1.0
    widths = {"wide": 1.0}


class Net(nn.Module):
    """Reads the width of its likelihood, which is 1 at first, in some way."""

    width_of_class = 1.0

    def __init__(self, read: Callable[[Any], Any] = lambda net: 1.0) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.act = nn.Identity()
        self.kind: Any = "narrow"
        self.scale: Any = None
        self.pair = (1.0, "x")
        self.dtype = torch.float32
        self.member = Kind.NARROW
        self.settings, self.slotted = Settings(1.0), Slotted(1.0)
        self.options, self.numbers, self.names = {"width": 1.0}, [1.0], {"narrow"}
        self.table, self.recent, self.parsed = Table(width=1.0), deque([1.0]), argparse.Namespace(width=1.0)
        self.tensor = torch.tensor(1.0)
        self.read = read

    def model(self, x: Tensor) -> None:
        pyro.module("net", self)
        with pyro.plate("data", len(x)):
            loc = self.act(self.layer(x)).squeeze(-1)
            pyro.sample("y", dist.Normal(loc, self.read(self)), obs=x.sum(-1))

    def guide(self, x: Tensor) -> None:
        pass


def read_global(net: Any) -> Any:
    return WIDTH


def read_table(table: Any, net: Any = None) -> Any:
    return (OPTIONS if net is None else table)["width"]


def by_function(net: Any) -> Any:
    return 0.5 * read_global(net) + 0.5 * read_table(net)


def set_global(net: Net, value: float) -> None:
    globals()["WIDTH"] = value


# How the program reads its width, and what makes it 5.
CHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "string": (lambda net: 5.0 if net.kind == "wide" else 1.0, lambda net: setattr(net, "kind", "wide")),
    "none": (lambda net: 1.0 if net.scale is None else 10 * net.scale, lambda net: setattr(net, "scale", 0.5)),
    "appears": (lambda net: getattr(net, "late", 1.0), lambda net: setattr(net, "late", 5.0)),
    "vanishes": (lambda net: 1.0 if hasattr(net, "pair") else 5.0, lambda net: delattr(net, "pair")),
    "tuple": (lambda net: net.pair[0], lambda net: setattr(net, "pair", (5.0, "x"))),
    "dtype": (lambda net: 1.0 if net.dtype == torch.float32 else 5.0, lambda net: setattr(net, "dtype", torch.float64)),
    "enum": (lambda net: net.member.value, lambda net: setattr(net, "member", Kind.WIDE)),
    "object": (lambda net: net.settings.width, lambda net: setattr(net.settings, "width", 5.0)),
    "another object": (lambda net: net.slotted.width, lambda net: setattr(net, "slotted", Slotted(5.0))),
    "slots": (lambda net: net.slotted.width, lambda net: setattr(net.slotted, "width", 5.0)),
    "namespace": (lambda net: net.parsed.width, lambda net: setattr(net.parsed, "width", 5.0)),
    "derived dictionary": (lambda net: net.table["width"], lambda net: net.table.update(width=5.0)),
    "deque": (lambda net: net.recent[0], lambda net: net.recent.__setitem__(0, 5.0)),
    "global class": (lambda net: Constants.width, lambda net: setattr(Constants, "width", 5.0)),
    "table of a class": (lambda net: Constants.widths["wide"], lambda net: Constants.widths.update(wide=5.0)),
    "module of Python": (lambda net: MODULE.width, lambda net: setattr(MODULE, "width", 5.0)),
    "dictionary": (lambda net: net.options["width"], lambda net: net.options.update(width=5.0)),
    "list": (lambda net: net.numbers[0], lambda net: net.numbers.__setitem__(0, 5.0)),
    "set": (lambda net: 5.0 if "wide" in net.names else 1.0, lambda net: (net.names.clear(), net.names.add("wide"))),
    "another tensor": (lambda net: net.tensor, lambda net: setattr(net, "tensor", torch.tensor(5.0))),
    "another layer": (lambda net: 1.0, lambda net: setattr(net, "act", nn.Tanh())),
    "attribute of the class": (lambda net: net.width_of_class, lambda net: setattr(Net, "width_of_class", 5.0)),
    "global": (read_global, lambda net: set_global(net, 5.0)),
    "global table": (read_table, lambda net: OPTIONS.update(width=5.0)),
    "global of a function": (by_function, lambda net: set_global(net, 9.0)),
    "argument that is bound": (functools.partial(read_table, OPTIONS), lambda net: OPTIONS.update(width=5.0)),
}
every_change = pytest.mark.parametrize("name", CHANGES)


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.setitem(globals(), "WIDTH", 1.0)
    monkeypatch.setitem(OPTIONS, "width", 1.0)
    monkeypatch.setattr(Net, "width_of_class", 1.0)
    monkeypatch.setattr(Constants, "width", 1.0)
    monkeypatch.setitem(Constants.widths, "wide", 1.0)
    monkeypatch.setattr(MODULE, "width", 1.0, raising=False)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def uncompiled(monkeypatch):
    """Traced, but not compiled: all that is held by a trace is held by compiled code."""
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", lambda graph, *_, **__: graph)


def trainer(net: Net, **options: Any) -> FastSVI:
    return FastSVI(net.model, net.guide, pyro.optim.Adam({"lr": 0.0}), Trace_ELBO(), **options)


def test_captured_step_is_captured_again(x, replayed):
    net = Net()
    svi = trainer(net, capture=True)
    for kind in ("narrow", "wide", "narrow"):
        net.kind = kind
        for _ in range(3):
            svi.step(x)
    assert len(svi._captured._steps) == 2


@every_change
def test_compiled_step_follows(name, x, uncompiled):
    read, change = CHANGES[name]
    net = Net(read)
    svi = trainer(net, compile=True)
    before = [svi.step(x).item() for _ in range(4)][-1]
    change(net)
    expected = svi.evaluate_loss(x).item()
    assert abs(expected - before) > 1e-3
    for _ in range(4):
        assert svi.step(x).item() == pytest.approx(expected, rel=1e-5)


def test_variable_of_an_enclosing_function(x, uncompiled):
    kind = "narrow"

    def model(x: Tensor) -> None:
        loc = pyro.param("loc", torch.zeros(()))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(loc, 5.0 if kind == "wide" else 1.0), obs=x.sum(-1))

    svi = FastSVI(model, lambda x: None, pyro.optim.SGD({"lr": 0.0}), Trace_ELBO(), compile=True)
    before = [svi.step(x).item() for _ in range(3)][-1]
    kind = "wide"
    assert svi.step(x).item() == svi.step(x).item() == pytest.approx(svi.evaluate_loss(x).item()) != before


def test_ensemble_follows_its_first_member(x, uncompiled):
    nets = [Net(lambda net: 5.0 if net.kind == "wide" else 1.0) for _ in range(2)]
    svi = EnsembleSVI([(net.model, net.guide) for net in nets], pyro.optim.SGD({"lr": 0.0}), Trace_ELBO(), compile=True)
    for _ in range(2):
        svi.step(x, shared=True)
    for net in nets:
        net.kind = "wide"
    expected = torch.stack([Trace_ELBO().differentiable_loss(net.model, net.guide, x) for net in nets])
    torch.testing.assert_close(svi.step(x, shared=True), expected.detach())


def test_chain_follows(uncompiled):
    settings = Settings(1.0)

    def model() -> None:
        pyro.sample("z", dist.Normal(0.0, settings.width))

    kernel = FastNUTS(model)
    for width in (1.0, 100.0):
        settings.width = width
        start = {"z": torch.zeros(())}
        mcmc = pyro.infer.MCMC(kernel, 40, 20, initial_params=start, disable_progbar=True)
        mcmc.run()
        assert 0.3 * width < mcmc.get_samples()["z"].std() < 3 * width


def test_equal_values_are_one_key():
    net = Net()
    surroundings = Surroundings([net.model])
    key = surroundings.key()
    assert surroundings.key() is key
    net.kind = "".join(["nar", "row"])
    net.options = {"width": 1.0}
    assert surroundings.key() is not key
    assert surroundings.key() == key


def test_what_a_transform_remembers_makes_no_new_key():
    net = Net()
    net.flow = manifold_flow(PoincareBall(1.0), 2)
    net.other = dist.transforms.affine_autoregressive(2)
    surroundings = Surroundings([net.model])
    key = surroundings.key()
    for flow in (net.flow, net.other):
        flow.inv(flow(torch.zeros(2)))
    assert surroundings.key() == key


@pytest.mark.parametrize("write", ["tensor", "list", "object", "global"])
def test_what_programs_write_makes_no_new_step(write, x, uncompiled, monkeypatch):
    """They keep it to be looked at: a loss, the plates of an automatic guide."""
    made: list[Any] = []
    monkeypatch.setattr(
        "pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", lambda graph, *_, **__: made.append(1) or graph
    )
    kept: list[Any] = []

    class Writing(Net):
        def model(self, x: Tensor) -> None:
            super().model(x)
            if write == "tensor":
                self.last = self.layer(x)
            elif write == "list":
                self.numbers.append(len(self.numbers))
            elif write == "object":
                self.settings.history = [*getattr(self.settings, "history", ()), len(x)]
            else:
                kept.append(len(kept))

    net = Writing()
    svi = trainer(net, compile=True)
    for _ in range(6):
        svi.step(x)
    assert len(svi._compiled) <= 2


def test_automatic_guide_is_compiled_once(uncompiled):
    def model() -> None:
        with pyro.plate("data", 3):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    svi = FastSVI(model, AutoNormal(model), pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO(), compile=True)
    for _ in range(4):
        svi.step()
    assert len(svi._compiled) == 1


@pytest.mark.filterwarnings("default")
def test_what_changes_all_the_time_is_named(x, uncompiled):
    net = Net()
    svi = trainer(net, compile=True)
    for _ in range(7):
        net.numbers.append(svi.step(x).item())
    with pytest.warns(UserWarning, match=r"compiled or captured 8 times .* changed: Net\.numbers\. Make it a tensor"):
        svi.step(x)
