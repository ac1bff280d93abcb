"""Chains of compiled steps: the trees of Pyro's sampler, leaf by leaf; test_posteriors_mcmc has the posteriors."""

import contextlib
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS
from pyro.ops.integrator import potential_grad

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.accelerate.programs.compiled import compile_function
from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.infer import FastNUTS, with_drawn_curvature


def several_sites():
    """Points in a plate, a positive number and an enumerated one."""
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with pyro.plate("points", 3):
        z = pyro.sample("z", dist.Normal(torch.zeros(2), scale).to_event(1))
        far = pyro.sample("far", dist.Bernoulli(0.3))
        pyro.sample("x", dist.Normal(z.square().sum(-1) + far, 0.3), obs=torch.tensor([0.5, 1.0, 2.0]))


def two(device="cpu"):
    mean, covariance, y = (torch.tensor(t, device=device) for t in ([1.0, 2.0], [[1.0, 0.9], [0.9, 1.0]], 1.0))
    x = pyro.sample("x", dist.MultivariateNormal(mean, covariance))
    pyro.sample("y", dist.Normal(x.sum(), 1.0), obs=y)


def is_posterior_of_two(x):
    """Which is normal, with the precision of the prior and that of the sum."""
    prior = torch.tensor([[1.0, 0.9], [0.9, 1.0]]).inverse()
    covariance = (prior + 1.0).inverse()
    mean = covariance @ (prior @ torch.tensor([1.0, 2.0]) + 1.0)
    assert ((x.mean(0) - mean).abs() < 4 * (covariance.diagonal() / 100).sqrt()).all()
    torch.testing.assert_close(x.T.cov(), covariance, rtol=0.5, atol=0.1)


@pytest.fixture
def traced(monkeypatch):
    """Steps are traced, but what would be compiled runs as it is: the trees and the slow tests have the compiler."""
    monkeypatch.setattr("pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", lambda graph, *_, **__: graph)


def chain(kernel, num_samples=10, warmup_steps=10, **options):
    mcmc = MCMC(kernel, num_samples, warmup_steps, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def test_trees_are_those_of_pyro():
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    # A dense block of the mass matrix, and a diagonal one.
    options = {"full_mass": [("z",)], "step_size": 0.2, "adapt_step_size": False}
    theirs, ours = NUTS(several_sites, **options), FastNUTS(several_sites, **options)
    for kernel in (theirs, ours):
        pyro.set_rng_seed(1)
        kernel.setup(10)
        blocks = kernel.inverse_mass_matrix
        # Not the identity: what adaptation would find.
        for block, matrix in blocks.items():
            near = torch.linspace(0.5, 2.0, len(matrix))
            blocks[block] = near if matrix.dim() == 1 else near.diag() + 0.2
        kernel.mass_matrix_adapter.inverse_mass_matrix = dict(blocks)
    z = ours.initial_params
    assert all(torch.equal(value, theirs.initial_params[name]) for name, value in z.items())
    for depth in range(5):
        for sign in (1, -1):
            r, r_unscaled = theirs._sample_r("r")
            grads, potential = potential_grad(theirs.potential_fn, z)
            energy = potential + theirs._kinetic_energy(r_unscaled)
            expected = theirs._build_tree(z, r, grads, -energy, sign, depth, energy)
            start, _ = ours._kicked(ours._flat(z), ours._flat(grads), potential)
            start = start._replace(p=torch.cat(list(r_unscaled.values())))
            tree = ours._grow(start, torch.tensor(sign * 0.2), depth, energy.item())
            end = expected.z_right if sign == 1 else expected.z_left
            torch.testing.assert_close(tree.last.z, ours._flat(end))
            torch.testing.assert_close(tree.momentum, torch.cat(list(expected.r_sum.values())))
            found = tree.log_weight, tree.accepted, tree.leaves, tree.turning, tree.diverging
            sums = expected.weight, expected.sum_accept_probs, expected.num_proposals
            assert found == pytest.approx((*map(float, sums), bool(expected.turning), bool(expected.diverging)))
            assert any(torch.equal(tree.proposal.z, leaf.z) for leaf in leaves(ours, start, sign, tree.leaves))


def leaves(kernel, leaf, sign, number):
    for _ in range(number):
        leaf, _ = kernel._leapfrog(leaf, torch.tensor(sign * 0.2))
        yield leaf


def test_proposals_have_the_weights_of_their_leaves(monkeypatch):
    pyro.set_rng_seed(0)
    kernel = FastNUTS(potential_fn=lambda values: 4 * values["x"].square().sum(), step_size=0.4, adapt_step_size=False)
    kernel.initial_params = {"x": torch.tensor([0.3, -0.2])}
    kernel.setup(0)
    start, energy = kernel._kicked(torch.tensor([0.3, -0.2]), torch.tensor([2.4, -1.6]), torch.tensor(0.52))
    size = torch.tensor(0.4)
    monkeypatch.setattr("pyro_hyperbolic.accelerate.fast_nuts._turns", lambda *momenta: False)
    trees = [kernel._grow(start, size, 2, energy) for _ in range(2000)]
    weights, points, leaf = [], [], start
    for _ in range(4):
        leaf, own = kernel._leapfrog(leaf, size)
        weights.append(math.exp(energy - own))
        points.append(leaf.z)
    shares = torch.tensor(weights) / sum(weights)
    seen = torch.tensor([sum(torch.equal(tree.proposal.z, z) for tree in trees) for z in points]) / len(trees)
    assert (seen - shares).abs().max() < 4 * 0.5 / len(trees) ** 0.5
    assert shares.max() > 1.5 * shares.min()  # so that this could fail


@pytest.mark.slow
def test_chains_are_repeated_by_their_seed_and_move_by_their_adapted_steps():
    found = []
    for _ in range(2):
        pyro.set_rng_seed(0)
        kernel = FastNUTS(two, full_mass=True)
        mcmc = chain(kernel, 400, 200)
        found.append(mcmc.get_samples()["x"])
    assert torch.equal(*found)
    mcmc.run()  # on the same kernel
    assert mcmc.get_samples()["x"].shape == (400, 2)
    assert kernel.num_leapfrogs >= 600
    assert mcmc.diagnostics()["acceptance rate"]["chain 0"] > 0.8
    is_posterior_of_two(found[0])


@pytest.mark.gpu
def test_chains_on_a_gpu():
    pyro.set_rng_seed(0)
    mcmc = MCMC(FastNUTS(two, full_mass=True), 400, 200, disable_progbar=True)
    mcmc.run("cuda")
    assert mcmc.get_samples()["x"].is_cuda
    is_posterior_of_two(mcmc.get_samples()["x"].cpu())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_chains_in_several_processes(monkeypatch):
    monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 3)
    x = torch.zeros(2)
    with torch._inductor.config.patch(force_disable_caches=True, compile_threads=2):
        compile_function(torch.cos, x)(x)  # so that the compiler has threads, which are not forked
        mcmc = chain(FastNUTS(two), 100, 100, num_chains=2)
    assert mcmc.get_samples(group_by_chain=True)["x"].shape == (2, 100, 2)


@pytest.mark.slow
@pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
@pytest.mark.parametrize("family", [WrappedNormal, RiemannianNormal])
def test_a_drawn_curvature_without_data_keeps_its_prior(chart, family):
    torch.set_default_dtype(torch.float64)

    @with_drawn_curvature
    def model():
        space = chart(pyro.sample("c", dist.LogNormal(0.0, 0.5)))
        with pyro.plate("points", 2):
            pyro.sample("z", family(space.origin(2), 1.0, space))

    log_c = chain(FastNUTS(model), 1500, 300).get_samples()["c"].log()
    assert abs(log_c.mean()) < 4 * 0.5 / 200**0.5
    assert log_c.std() == pytest.approx(0.5, rel=0.25)


@pytest.mark.parametrize("compiler", ["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_points_without_energy_are_divergences(compiler, request):
    if compiler == "traced":
        request.getfixturevalue("traced")

    def potential(values):
        # The matrix has no factors beyond 1: an error of torch, which Pyro takes for a rejection.
        root = torch.linalg.cholesky(torch.eye(2) * (1 - values["x"]))
        return values["x"].square() / 2 + 0 * root.sum()

    pyro.set_rng_seed(0)
    kernel = FastNUTS(potential_fn=potential, step_size=1.0, adapt_step_size=False)
    mcmc = chain(kernel, 100, 0, initial_params={"x": torch.tensor(0.0)})
    assert mcmc.get_samples()["x"].max() < 1
    assert mcmc.diagnostics()["divergences"]["chain 0"]


@pytest.mark.parametrize(("error", "is_refused"), [(2.0, False), (1e4, True)])
def test_rounding_is_not_taken_for_a_difference(monkeypatch, error, is_refused):
    """What is compiled may round a position in another way, which turns this wave around, but not do more."""
    eps = torch.finfo(torch.float32).eps

    class Rounded:
        def __init__(self, step, *inputs):
            self.step = step

        def fixed(self, *inputs):
            def step(z, p, grad, size, *roots):
                z, p, grad, *_ = self.step(z, p, grad, size, *roots)
                return z, *self.step(z * (1 + error * eps), p, grad, torch.zeros_like(size), *roots)[1:]

            return step

    monkeypatch.setattr("pyro_hyperbolic.accelerate.fast_nuts.compile_function", Rounded)
    pyro.set_rng_seed(0)
    kernel = FastNUTS(potential_fn=lambda values: (1e3 * values["x"]).cos().sum())
    kernel.initial_params = {"x": torch.linspace(1.0, 2.0, 8)}
    with pytest.raises(ValueError, match="differ by") if is_refused else contextlib.nullcontext():
        kernel.setup(10)


def branching():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    if x > 0.3:
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(1.0))


class Forgetful:
    """Keeps what it has seen first."""

    seen = None

    def __call__(self):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if self.seen is None:
            self.seen = 0.0
        self.seen += 1.0
        pyro.factor("f", x * self.seen)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FastNUTS(two, jit_compile=True), "jit_compile must be left out"),
        (lambda: FastNUTS(two, use_multinomial_sampling=False), "use_multinomial_sampling must be True"),
        (lambda: FastNUTS(), "model"),
        (lambda: FastNUTS(3), "model must be a function or a module, got 3"),
        (lambda: FastNUTS(two, max_tree_depth=0), "max_tree_depth must be a positive integer, got 0"),
        (lambda: FastNUTS(two, step_size=-1.0), "step_size must be a positive number, or None"),
        (lambda: chain(FastNUTS(branching)), "cannot be compiled.*site 'x'.*pyro.infer.NUTS"),
        (lambda: chain(FastNUTS(Forgetful())), "compiled energy.*may depend on values.*pyro.infer.NUTS"),
    ],
)
def test_what_cannot_be_done_is_refused(make, message, traced):
    pyro.set_rng_seed(0)
    with pytest.raises(ValueError, match=message):
        make()


class Narrow:
    """Has an energy near 0 only; where the first value is forgotten, it has another one when it is compiled."""

    def __init__(self, width: float, forgets: bool = False) -> None:
        self.width, self.forgets, self.calls = width, forgets, 0

    def __call__(self, values):
        self.calls += 1
        factor = self.calls if self.forgets else 1
        x = values["x"]
        return torch.where(x.abs() < self.width, factor * (x + 1.0), torch.inf)


def test_the_comparison_looks_for_a_point_with_an_energy(traced):
    pyro.set_rng_seed(0)
    start = {"x": torch.tensor(0.0, dtype=torch.float64)}
    with pytest.raises(ValueError, match="compiled energy of the model is not the model's own"):
        chain(FastNUTS(potential_fn=Narrow(1e-4, forgets=True)), 1, 0, initial_params=start)
    with pytest.warns(UserWarning, match=r"could not be compared .* not finite .* pass other initial values") as record:
        chain(FastNUTS(potential_fn=Narrow(1e-9)), 1, 0, initial_params=start)
    assert record[0].filename == __file__


def test_a_program_without_sites_is_left_to_pyro():
    assert chain(FastNUTS(lambda: None)).get_samples() == {}


def test_step_size_is_pyros_where_it_is_none():
    assert FastNUTS(two, step_size=None).step_size == NUTS(two, step_size=None).step_size
