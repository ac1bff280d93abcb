"""The skeletons of docs/extending.rst do what the page says: their rows pass the contracts of the case tables."""

from __future__ import annotations

import doctest
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.mcmc.util import initialize_model

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, Product, Sphere
from pyro_hyperbolic.analysis import TangentPCA
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.infer import AutoWrappedNormal
from pyro_hyperbolic.models import ManifoldVAE
from pyro_hyperbolic.nn import Exp0, GyroplaneLinear, ManifoldModule
from tests.distributions import test_contract
from tests.distributions.cases import NormalCase
from tests.geometry import test_spaces
from tests.geometry.spaces import CURVED, SPACES, SpaceCase
from tests.helpers import DTYPES

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


def contract_tests(module: ModuleType, *tables: list) -> list[Callable[..., None]]:
    """Those that every row of a table passes: they take a case, and a dtype at most."""
    owners = [module, *(value() for name, value in vars(module).items() if name.startswith("Test"))]
    found = [
        of_one_row(getattr(owner, name), owner)
        for owner in owners
        for name in dir(owner)
        if name.startswith("test_") and over(getattr(owner, name), owner, tables)
    ]
    assert len(found) > 5
    return found


def of_one_row(test: Callable[..., None], owner: object) -> Callable[..., None]:
    """Without the loop over the rows of a table."""
    function = inspect.unwrap(test)
    return function if isinstance(owner, ModuleType) or inspect.ismethod(function) else function.__get__(owner)


def over(test: Callable[..., None], owner: object, tables: Sequence[list]) -> bool:
    marks = [*getattr(test, "pytestmark", []), *getattr(owner, "pytestmark", [])]
    rows, loop = [mark.args[1] for mark in marks if mark.args[0] == "case"], test
    while hasattr(loop, "__wrapped__"):
        rows.append(getattr(loop, "rows", None))
        loop = loop.__wrapped__
    of_table = any(found is table for found in rows for table in tables)
    return of_table and {*inspect.signature(loop).parameters} - {"self"} <= {"case", "dtype"}


def run_contract(test: Callable[..., None], case: object) -> None:
    for dtype in DTYPES if "dtype" in inspect.signature(test).parameters else [None]:
        test(case) if dtype is None else test(case, dtype)


def by_name(test: object) -> str | None:
    return getattr(test, "__name__", None)


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
    assert NAMES == ["distribution", "layer", "manifold", "model"]
    assert all(f".. literalinclude:: skeletons/{name}.py" in page for name in NAMES)


LAPLACES = [("number", 2, 1.0, PoincareBall), ("isotropic", 1, 0.3, Lorentz)]


@pytest.mark.parametrize("test", contract_tests(test_contract, test_contract.DISTRIBUTIONS), ids=by_name)
@pytest.mark.parametrize("row", LAPLACES, ids=str)
def test_distribution_passes_the_contract(
    test: Callable[..., None], row: tuple[str, int, float, type[Manifold]]
) -> None:
    run_contract(test, NormalCase(load("distribution").WrappedLaplace, *row))


def test_distribution_with_a_batch_of_curvatures() -> None:
    laplace = load("distribution").WrappedLaplace
    c, z = torch.tensor([0.3, 1.0, 2.0]), torch.tensor([0.2, 0.3])
    distribution = laplace(torch.zeros(2), 0.5, PoincareBall(c))
    assert distribution.batch_shape == distribution.sample().shape[:-1] == (3,)
    expected = [laplace(torch.zeros(2), 0.5, PoincareBall(k)).log_prob(z) for k in c.tolist()]
    torch.testing.assert_close(distribution.log_prob(z), torch.stack(expected))
    with pytest.raises(ValueError, match=r"WrappedLaplace: the batch shapes .* do not broadcast"):
        laplace(torch.zeros(2, 2), 0.5, PoincareBall(c))


@pytest.mark.parametrize("space", [Sphere(1.0), Product((PoincareBall(1.0), 1), (Sphere(1.0), 1))], ids=str)
def test_distribution_refuses_what_its_density_does_not_hold_for(space: Manifold) -> None:
    with pytest.raises(ValueError, match="WrappedLaplace: manifold must have no closed geodesics, got"):
        load("distribution").WrappedLaplace(space.origin(2), 0.5, space)


@pytest.mark.parametrize("manifold", CHARTS, ids=str)
def test_distribution_is_normalised(manifold: Manifold) -> None:
    distribution = load("distribution").WrappedLaplace(manifold.origin(3, torch.float64), 0.5, manifold)
    # Weights for a distribution that is known to integrate to one have the mean 1.
    z = distribution.sample((200_000,))
    target = hdist.WrappedNormal(manifold.origin(3, torch.float64), 0.7, manifold)
    weights = (target.log_prob(z.clone()) - distribution.log_prob(z.clone())).exp()
    assert weights.mean().item() == pytest.approx(1, abs=5 * weights.std().item() / len(z) ** 0.5)
    # The radius is a Gamma variable.
    radius = manifold.dist0(z)
    assert radius.mean().item() == pytest.approx(3 * 0.5, rel=0.01)
    assert radius.var().item() == pytest.approx(3 * 0.5**2, rel=0.03)
    assert (radius <= distribution._outer_radii()[0]).double().mean().item() == pytest.approx(0.99865, abs=3e-4)


def torus(c: Any) -> Manifold:
    return load("manifold").FlatTorus(c)


def circles(c: float, dim: int) -> Product:
    """The torus as a product of circles."""
    return Product(*[(Sphere(c), 1)] * dim)


TORUS = [SpaceCase("FlatTorus", torus, dim, c, has_planes=False) for dim, c in ((2, 0.7), (3, 1.4))]


@pytest.mark.parametrize("case", TORUS, ids=str)
@pytest.mark.parametrize("test", contract_tests(test_spaces, SPACES, CURVED), ids=by_name)
def test_manifold_passes_the_contract(test: Callable[..., None], case: SpaceCase) -> None:
    run_contract(test, case)


TORUS_NORMALS = [
    NormalCase(hdist.WrappedNormal, "full", 2, 0.7, torus),
    NormalCase(hdist.RiemannianNormal, "isotropic", 3, 0.7, torus),
]


@pytest.mark.parametrize("case", TORUS_NORMALS, ids=str)
@pytest.mark.parametrize("test", contract_tests(test_contract, test_contract.DISTRIBUTIONS), ids=by_name)
def test_normals_on_the_manifold_pass_the_contract(test: Callable[..., None], case: NormalCase) -> None:
    run_contract(test, case)


@pytest.mark.parametrize(
    ("distribution", "kind"), [("Wrapped", "number"), ("Wrapped", "full"), ("Riemannian", "number")]
)
def test_normals_on_the_torus_are_those_of_circles(distribution: str, kind: str) -> None:
    c, dim = 0.7, 2
    v = 3 * torch.randn(20, dim, dtype=torch.float64)
    densities = []
    for chart in (torus, lambda c: circles(c, dim)):
        case = NormalCase(getattr(hdist, f"{distribution}Normal"), kind, dim, c, chart)
        densities.append(case.make().log_prob(case.manifold.from_normal_coords(None, v)))
    torch.testing.assert_close(*densities)
    grid = torch.linspace(-torch.pi, torch.pi, 101, dtype=torch.float64)[:-1]
    cells = torch.cartesian_prod(grid, grid)
    mass = (
        NormalCase(case.distribution, kind, dim, c, torus).make().lebesgue_log_prob(cells).exp().sum()
        * (grid[1] - grid[0]) ** 2
    )
    assert mass.item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("posterior", ["wrapped", "riemannian"])
def test_model_on_the_torus_trains(posterior: str) -> None:
    pyro.set_rng_seed(0)
    manifold = ManifoldModule(torus(1.0), learnable=True)
    assert str(manifold) == "ManifoldModule(FlatTorus, learnable=True)"
    options: dict[str, Any] = {"hidden_dim": 8, "likelihood": "normal", "decoder": "mlp"}
    vae = ManifoldVAE(manifold, 2, 3, prior=posterior, posterior=posterior, **options)
    data = torch.randn(40, 1) * torch.tensor([4.0, -3.0, 2.0])
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.06}), Trace_ELBO())
    losses = [svi.step(data) for _ in range(20)]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert manifold.c.item() != 1.0


def test_inference_on_the_torus() -> None:
    """What HMC samples from, and what an autoguide draws."""
    space = torus(1.0)
    target = hdist.WrappedNormal(torch.zeros(2), 1.5, space)

    def model() -> None:
        z = pyro.sample("z", target)
        pyro.sample("x", dist.Normal(space.dist(z, torch.tensor([2.5, -0.5])), 0.7), obs=torch.tensor(0.4))

    _, potential, transforms, _ = initialize_model(model)
    v = torch.tensor([3.0, -1.0])
    z = transforms["z"].inv(v)
    torch.testing.assert_close(z, space.from_unconstrained(v))
    likelihood = dist.Normal(space.dist(z, torch.tensor([2.5, -0.5])), 0.7).log_prob(torch.tensor(0.4))
    expected = target.log_prob(z) + likelihood + space.log_det_unconstrained(v)
    torch.testing.assert_close(potential({"z": v}), -expected)
    svi = SVI(model, guide := AutoWrappedNormal(model), pyro.optim.Adam({"lr": 0.03}), Trace_ELBO())
    assert svi.step() > 0
    assert space.contains(guide()["z"])


def test_what_the_torus_has_not() -> None:
    space = torus(1.0)
    with pytest.raises(ValueError, match="manifold must be of constant curvature, and no product, got FlatTorus"):
        TangentPCA(1).fit(torch.randn(9, 2), space)
    with pytest.raises(ValueError, match="decoder 'logmap' or 'mlp'"):
        GyroplaneLinear(2, 3, space)(torch.zeros(2))
    with pytest.raises(NotImplementedError, match="sum over windings"):
        hdist.WrappedNormal(torch.zeros(2), 1.0, space).entropy()


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
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.06}), Trace_ELBO())
    losses = [svi.step(images) for _ in range(20)]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    assert vae.manifold.c.item() != manifold.c
