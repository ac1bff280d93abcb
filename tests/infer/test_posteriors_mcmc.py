"""Hamiltonian Monte Carlo on the small programs: kernels, charts and reparametrisations against the grid.

The program has many copies of its position in a plate. They are independent, so that a run is as many chains at once,
and the standard error of a mean is seen in the spread of the chains.
"""

from __future__ import annotations

import math
import warnings
from functools import partial

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import HMC, MCMC, NUTS, SVI, Predictive, RandomWalkKernel, Trace_ELBO
from pyro.infer.autoguide import AutoIAFNormal, AutoMultivariateNormal, init_to_mean
from pyro.infer.mcmc import StreamingMCMC
from pyro.infer.mcmc.util import initialize_model
from pyro.infer.reparam import NeuTraReparam
from pyro.ops.streaming import CountMeanVarianceStats, StatsOfDict
from torch.autograd.functional import jacobian

from pyro_hyperbolic import Lorentz
from pyro_hyperbolic.infer import AutoManifoldFlow, FastNUTS, NoiseReparam, sample_posterior
from tests.infer.agreement import SIGMAS, Found, agrees
from tests.infer.posterior_models import BALL, C, Triangulation, log_jacobian, on_disc

COPIES = 48
HYPERBOLOID = Lorentz(C)
# Step sizes are near half of the posterior's standard deviation: nothing is left to adapt.
FIXED = {"adapt_step_size": False, "adapt_mass_matrix": False, "init_strategy": init_to_mean}
hmc = partial(HMC, step_size=0.2, num_steps=4, **FIXED)
nuts = partial(NUTS, step_size=0.25, max_tree_depth=2, **FIXED)
fast = partial(FastNUTS, step_size=0.25, max_tree_depth=2, **FIXED)
adapted = partial(NUTS, init_strategy=init_to_mean)
adapted_fast = partial(FastNUTS, init_strategy=init_to_mean)


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)


def run(kernel, num_samples=30, warmup_steps=8, **options):
    mcmc = MCMC(kernel, num_samples, warmup_steps, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def plain(program, kernel, **options):
    """Draws ``(n, copies, D)``."""
    return run(kernel(program.model), **options).get_samples()["z"]


def reparametrised(program, kernel, **options):
    """In the tangent space of the prior's mean, in units of its scale."""
    model = poutine.reparam(program.model, {"z": NoiseReparam()})
    samples = run(kernel(model, step_size=0.14), **options).get_samples()
    z = Predictive(model, samples, return_sites=["z"], parallel=True)()["z"]
    return z.reshape(len(samples["z_base"]), *z.shape[-2:])


def neutra(program, kernel, family, **options):
    """In the coordinates of a guide, where the posterior is near a standard normal."""
    reparam = NeuTraReparam(trained(program, family))
    kernel = kernel(reparam.reparam(program.model))
    return reparam.transform_sample(run(kernel, **options).get_samples()["z_shared_latent"])["z"]


def transported(program):
    """The same for the guide that is a flow on the space itself, with chains that move together."""
    model = trained(program, flow).reparam(program.model)
    return sample_posterior(model, num_samples=400, warmup=200, progress=False).samples["z"]


def trained(program, family, steps=50):
    guide = family(program.model)
    loss = Trace_ELBO(num_particles=64, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(program.model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.95}), loss)
    for _ in range(steps):
        svi.step()
    return guide.requires_grad_(False)


MANY, RIEMANNIAN = Triangulation(copies=COPIES), Triangulation("riemannian", copies=COPIES)
MANY_ON_HYPERBOLOID = Triangulation(manifold=HYPERBOLOID, copies=COPIES)
iaf = partial(AutoIAFNormal, hidden_dim=[8])
flow = partial(AutoManifoldFlow, layers=2, hidden_dims=(8,), bins=4)
slow = pytest.mark.slow

# What it is called, how it draws, on which program.
METHODS = [
    pytest.param(partial(plain, kernel=hmc), MANY, id="HMC"),
    pytest.param(partial(plain, kernel=nuts), MANY, id="NUTS"),
    pytest.param(partial(reparametrised, kernel=nuts), MANY, id="NUTS, NoiseReparam"),
    pytest.param(partial(plain, kernel=fast), MANY, id="FastNUTS", marks=slow),
    pytest.param(partial(plain, kernel=nuts), RIEMANNIAN, id="NUTS, Riemannian prior", marks=slow),
    pytest.param(partial(plain, kernel=fast), RIEMANNIAN, id="FastNUTS, Riemannian prior", marks=slow),
    pytest.param(partial(reparametrised, kernel=fast), MANY_ON_HYPERBOLOID, id="FastNUTS, hyperboloid", marks=slow),
    pytest.param(partial(plain, kernel=hmc), MANY_ON_HYPERBOLOID, id="HMC, hyperboloid", marks=slow),
    pytest.param(
        partial(reparametrised, kernel=hmc), MANY_ON_HYPERBOLOID, id="HMC, reparametrised hyperboloid", marks=slow
    ),
    pytest.param(
        partial(plain, kernel=partial(nuts, jit_compile=True, ignore_jit_warnings=True)),
        MANY,
        id="NUTS, compiled",
        marks=slow,
    ),
    pytest.param(
        partial(plain, kernel=adapted, num_samples=100, warmup_steps=100), MANY, id="NUTS, adapted", marks=slow
    ),
    pytest.param(
        partial(plain, kernel=adapted_fast, num_samples=100, warmup_steps=100), MANY, id="FastNUTS, adapted", marks=slow
    ),
]
# The same for one long chain, whose errors are seen in the spread of its parts.
LONG = {"num_samples": 1600, "warmup_steps": 100}
CHAINS = [
    pytest.param(partial(neutra, kernel=NUTS, family=iaf, **LONG), Triangulation(), id="NUTS, NeuTra of a flow"),
    pytest.param(transported, Triangulation(), id="sample_posterior, AutoManifoldFlow"),
    pytest.param(
        partial(neutra, kernel=NUTS, family=AutoMultivariateNormal, **LONG), Triangulation("riemannian"), id="NeuTra"
    ),
    pytest.param(
        partial(plain, kernel=partial(FastNUTS, full_mass=True), **LONG), Triangulation(), id="FastNUTS, full mass"
    ),
    pytest.param(
        partial(plain, kernel=RandomWalkKernel, num_samples=8000, warmup_steps=300), Triangulation(), id="random walk"
    ),
]


@pytest.mark.parametrize(("method", "program"), METHODS)
def test_agrees_with_the_grid(method, program):
    z = on_disc(method(program), program.manifold)
    agrees(Found(z.transpose(0, 1)), program)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "program"), CHAINS)
def test_long_chain_agrees_with_the_grid(method, program):
    agrees(Found(method(program).reshape(20, -1, 2)), program)


def _of_plain(program):
    return program.model, lambda v: program.manifold.from_normal_coords(None, v)


def _of_reparametrised(program):
    model = poutine.reparam(program.model, {"z": NoiseReparam()})
    distribution = program.prior()
    return model, lambda u: program.manifold.from_normal_coords(distribution.loc, distribution.scale * u)


def _of_neutra(program):
    reparam = NeuTraReparam(trained(program, iaf, steps=5))
    return reparam.reparam(program.model), lambda u: reparam.transform_sample(u)["z"].squeeze(-2)


def _of_flow(program):
    guide = trained(program, flow, steps=5)
    model = guide.reparam(program.model)

    def point(u):
        return poutine.trace(poutine.condition(model, {"flow_base": u})).get_trace().nodes["z"]["value"].squeeze(-2)

    return model, point


@pytest.mark.parametrize(
    ("coordinates", "program"),
    [
        pytest.param(_of_plain, Triangulation(), id="plain"),
        pytest.param(_of_plain, Triangulation("riemannian", HYPERBOLOID), id="plain, Riemannian hyperboloid"),
        pytest.param(_of_reparametrised, Triangulation(), id="NoiseReparam"),
        pytest.param(_of_reparametrised, Triangulation(manifold=HYPERBOLOID), id="NoiseReparam, hyperboloid"),
        pytest.param(_of_neutra, Triangulation("riemannian"), id="NeuTra, Riemannian prior"),
        pytest.param(_of_neutra, Triangulation(manifold=HYPERBOLOID), id="NeuTra, hyperboloid"),
        pytest.param(_of_flow, Triangulation("riemannian"), id="AutoManifoldFlow, Riemannian prior"),
        pytest.param(_of_flow, Triangulation(manifold=HYPERBOLOID), id="AutoManifoldFlow, hyperboloid"),
    ],
)
def test_potential_energy_is_minus_the_log_density_of_the_coordinates(coordinates, program):
    # What the kernels see, exactly: the density of z with respect to the volume, the volume per volume of normal
    # coordinates, and the determinant of these in the kernel's coordinates by automatic differentiation.
    model, point = coordinates(program)
    start, potential, _, _ = initialize_model(model)
    ((name, value),) = start.items()

    def normal(u):
        return BALL.to_normal_coords(None, on_disc(point(u), program.manifold))

    for u in torch.randn(4, 2):
        z = on_disc(point(u), program.manifold)
        determinant = jacobian(normal, u).det().abs().log()
        expected = program.exact().log_joint(z) + log_jacobian(z) + determinant
        torch.testing.assert_close(potential({name: u.expand(value.shape)}), -expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def two_chains():
    """Two chains of four positions, one after the other in this process."""
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="num_chains")
        patch.setattr("torch.multiprocessing.cpu_count", lambda: 1)
        return run(nuts(Triangulation(copies=4).model), num_samples=40, num_chains=2)


@pytest.mark.slow
def test_diagnostics_of_two_chains(two_chains):
    diagnostics = two_chains.diagnostics()
    assert two_chains.get_samples(group_by_chain=True)["z"].shape == (2, 40, 4, 2)
    assert diagnostics["z"]["r_hat"].shape == diagnostics["z"]["n_eff"].shape == (4, 2)
    assert diagnostics["z"]["r_hat"].mean() < 1.1
    assert 20 < diagnostics["z"]["n_eff"].mean() <= 80
    assert not any(diagnostics["divergences"].values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_export_to_arviz(two_chains):
    arviz = pytest.importorskip("arviz")
    exported = arviz.from_pyro(two_chains, log_likelihood=False)
    torch.testing.assert_close(
        torch.as_tensor(exported.posterior["z"].values), two_chains.get_samples(group_by_chain=True)["z"]
    )
    diagnostics = two_chains.diagnostics()["z"]
    r_hat = arviz.rhat(exported, method="split")["z"].values
    torch.testing.assert_close(torch.as_tensor(r_hat), diagnostics["r_hat"], rtol=0.02, atol=0)


@pytest.mark.slow
def test_chains_in_processes_of_their_own():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.multiprocessing.cpu_count", lambda: 4)
        mcmc = run(nuts(MANY.model), num_samples=60, num_chains=2)
    z = mcmc.get_samples(group_by_chain=True)["z"]
    assert (mcmc.diagnostics()["z"]["r_hat"] < 1.2).all()
    assert not torch.equal(z[0], z[1])
    agrees(Found(z.transpose(1, 2).flatten(0, 1)), MANY)


@pytest.mark.slow
def test_streaming_statistics():
    mcmc = StreamingMCMC(
        nuts(MANY.model), 60, 10, statistics=StatsOfDict(default=CountMeanVarianceStats), disable_progbar=True
    )
    mcmc.run()
    mean = mcmc.get_statistics()[0, "z"]["mean"]
    error = mean.std(0) / math.sqrt(COPIES)
    assert ((mean.mean(0) - MANY.exact().expectation(lambda z: z)).abs() < SIGMAS * error).all()
