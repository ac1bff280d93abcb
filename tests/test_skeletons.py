"""The skeletons of docs/extending.rst do what the page says: their rows pass the contracts of the case tables."""

from __future__ import annotations

import doctest
import functools
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.nn import Exp0, ManifoldModule
from tests.distributions import test_contract
from tests.distributions.cases import NormalCase

SKELETONS = Path(__file__).parents[1] / "docs" / "skeletons"
NAMES = sorted(path.stem for path in SKELETONS.glob("*.py"))
CHARTS = [PoincareBall(0.7), Lorentz(0.7)]


@functools.cache
def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"skeleton_{name}", SKELETONS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where pickle looks for its classes
    spec.loader.exec_module(module)
    return module


def contract_tests() -> list[str]:
    """Those that every law passes: they take a case and nothing else."""
    found = {name: test for name, test in vars(test_contract).items() if name.startswith("test_")}
    over_all = [
        name
        for name, test in found.items()
        if over_distributions(test) and list(inspect.signature(test).parameters) == ["case"]
    ]
    assert len(over_all) > 5
    return over_all


def over_distributions(test: object) -> bool:
    marks = getattr(test, "pytestmark", [])
    return any(mark.args[0] == "case" and mark.args[1] is test_contract.DISTRIBUTIONS for mark in marks)


@pytest.mark.parametrize("name", NAMES)
def test_doctests(name: str) -> None:
    module = load(name)
    tests = [test for test in doctest.DocTestFinder().find(module, extraglobs={"torch": torch}) if test.examples]
    assert tests
    for test in tests:
        report: list[str] = []
        doctest.DocTestRunner().run(test, out=report.append)
        assert not report, "".join(report)


def test_all_are_on_the_page() -> None:
    page = (SKELETONS.parent / "extending.rst").read_text()
    assert NAMES == ["distribution", "layer", "model"]
    assert all(f".. literalinclude:: skeletons/{name}.py" in page for name in NAMES)


@pytest.mark.parametrize("test", contract_tests())
@pytest.mark.parametrize("row", [("number", 2, 1.0, PoincareBall), ("isotropic", 1, 0.3, Lorentz)], ids=str)
def test_law_passes_the_contract(test: str, row: tuple[str, int, float, type[Manifold]]) -> None:
    getattr(test_contract, test)(NormalCase(load("distribution").WrappedLaplace, *row))


@pytest.mark.parametrize("manifold", CHARTS, ids=str)
def test_law_is_normalised(manifold: Manifold) -> None:
    law = load("distribution").WrappedLaplace(manifold.origin(3, torch.float64), 0.5, manifold)
    # Weights for a law that is known to integrate to one have the mean 1.
    z = law.sample((200_000,))
    target = hdist.WrappedNormal(manifold.origin(3, torch.float64), 0.7, manifold)
    weights = (target.log_prob(z.clone()) - law.log_prob(z.clone())).exp()
    assert weights.mean().item() == pytest.approx(1, abs=5 * weights.std().item() / len(z) ** 0.5)
    # The radius is a Gamma variable.
    radius = manifold.dist0(z)
    assert radius.mean().item() == pytest.approx(3 * 0.5, rel=0.01)
    assert radius.var().item() == pytest.approx(3 * 0.5**2, rel=0.03)
    assert (radius <= law._outer_radii()[0]).double().mean().item() == pytest.approx(0.99865, abs=3e-4)


def test_layer_is_the_same_in_both_charts() -> None:
    layer, other = (load("layer").Prototypes(3, 5, manifold) for manifold in CHARTS)
    other.load_state_dict(layer.state_dict())
    v = torch.randn(7, 3)
    ball, hyperboloid = (Exp0(manifold)(v) for manifold in CHARTS)
    torch.testing.assert_close(layer(ball), other(hyperboloid))
    torch.testing.assert_close(
        layer(ball)[2, 4], CHARTS[0].dist(ball[2], layer.manifold().from_normal_coords(None, layer.points[4]))
    )


@pytest.mark.parametrize("manifold", CHARTS, ids=str)
def test_model_trains(manifold: Manifold) -> None:
    images = (torch.rand(40, 6, 5) < torch.linspace(0.1, 0.9, 5)).float()
    vae = load("model").ConvVAE(ManifoldModule(manifold, learnable=True), 2, (6, 5), channels=2, hidden_dim=8)
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.03}), Trace_ELBO())
    losses = [svi.step(images) for _ in range(40)]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert vae.manifold.c.item() != manifold.c
