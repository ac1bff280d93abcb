"""Posteriors by many chains at once."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.ops.stats import effective_sample_size

import pyro_hyperbolic.distributions as hdist
from benchmarks.posterior_cases import CASES
from benchmarks.posteriors import measure
from pyro_hyperbolic import Lorentz, PoincareBall, Sphere
from pyro_hyperbolic.infer import sample_posterior
from pyro_hyperbolic.infer.posterior import fits, sampler, start
from pyro_hyperbolic.infer.posterior.energy import Energy
from pyro_hyperbolic.infer.posterior.gauge import blocks
from pyro_hyperbolic.infer.posterior.start import find_start, modes
from pyro_hyperbolic.infer.posterior.target import Target

pytestmark = pytest.mark.usefixtures("double")

COUNTS = torch.tensor([3.0, 0.0, 12.0, 5.0])
DATA = torch.tensor([1.0, 2.0, 4.0])


def model(data, counts):
    """Three posteriors that are known: of a mean, of shares, and of a kind that is summed out."""
    loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
    p = pyro.sample("p", dist.Dirichlet(torch.full((4,), 0.8)))
    share = pyro.sample("share", dist.Beta(2.0, 2.0))
    with pyro.plate("data", len(data)):
        pyro.sample("x", dist.Normal(loc, 1.0), obs=data)
    pyro.sample("counts", dist.Multinomial(20, p), obs=counts)
    kind = pyro.sample("kind", dist.Bernoulli(share), infer={"enumerate": "parallel"})
    pyro.sample("y", dist.Normal(4.0 * kind, 1.0), obs=torch.tensor(3.0))
    pyro.deterministic("twice", 2 * loc)


STARTS = [
    ({"share": torch.tensor(2.0)}, "values of site 'share' that are not in its support"),
    (lambda *args: pyro.sample("share", dist.Normal(5.0, 0.1)), "values of site 'share' that are not in its support"),
    (lambda *args: pyro.sample("other", dist.Normal(5.0, 0.1)), "start must draw latents of the model"),
    ({"p": torch.ones(3) / 3}, r"start\['p'\] must have shape \(4,\), as the site has, got \(3,\)"),
]


def run(**options):
    return sample_posterior(model, DATA, COUNTS, **({"num_chains": 4, "warmup": 200, "progress": False} | options))


def test_known_posteriors_and_interrupted_runs(tmp_path, monkeypatch):
    state = torch.get_rng_state()
    whole = run(num_samples=1000)
    assert torch.equal(torch.get_rng_state(), state)
    assert whole.converged, whole.summary()
    assert whole.deterministic == {"twice"}
    assert torch.equal(whole.samples["twice"], 2 * whole.samples["loc"])
    shares = torch.distributions.Dirichlet(0.8 + COUNTS)
    kinds = dist.Normal(torch.tensor([0.0, 4.0]), 1.0).log_prob(torch.tensor(3.0)).softmax(0)
    mean = (kinds * torch.tensor([2 / 5, 3 / 5])).sum()
    square = (kinds * torch.tensor([2 * 3 / 30, 3 * 4 / 30])).sum()
    precision = 0.01 + len(DATA)
    known = {
        "loc": (DATA.sum() / precision, precision**-0.5),
        "p": (shares.mean, shares.variance.sqrt()),
        "share": (mean, (square - mean**2).sqrt()),
    }
    for name, (mean, sd) in known.items():
        draws, ess = whole.samples[name], whole.diagnostics()[name].bulks.reshape(whole.samples[name].shape[2:])
        assert ((draws.mean((0, 1)) - mean).abs() < 4 * sd / ess.sqrt()).all(), name
        assert ((draws.std((0, 1)) / sd - 1).abs() < 4 / ess.sqrt()).all(), name

    # Killed while it draws, and gone on with: the same draws.
    path = tmp_path / "run.pt"
    monkeypatch.setattr(sampler, "_SECONDS", 0.0)
    original = sampler.Chains.save

    def killed(self, path):
        original(self, path)
        if len(self.draws) == 17:
            raise KeyboardInterrupt

    monkeypatch.setattr(sampler.Chains, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        run(num_samples=40, checkpoint=path)
    monkeypatch.setattr(sampler, "_AT_ONCE", 100)  # values of some draws at a time
    resumed = run(num_samples=40, checkpoint=path)
    # But for the last digits of values that are computed some at a time.
    before = {name: draws[:, :40] for name, draws in whole.samples.items()}
    torch.testing.assert_close(resumed.samples, before, rtol=1e-13, atol=0.0)
    with pytest.raises(ValueError, match="checkpoint has the draws of another run: its settings"):
        run(num_samples=40, checkpoint=path, seed=1)
    with pytest.raises(
        ValueError, match=r"start must name latents of the model, \['loc', 'p', 'share'\], got \['lok'\]"
    ):
        run(start={"lok": torch.tensor(0.0)})
    with pytest.raises(ValueError, match="checkpoint has the draws of another run: the density"):
        sample_posterior(model, DATA + 1, COUNTS, num_chains=4, warmup=200, num_samples=40, checkpoint=path)
    fewer = run(num_samples=30, checkpoint=path)
    assert torch.equal(fewer.samples["loc"], resumed.samples["loc"][:, :30])
    for values, words in STARTS:
        with pytest.raises(ValueError, match=words):
            run(start=values)
    with pytest.raises(ValueError, match="start has density 0"):
        run(start={"loc": torch.tensor(torch.inf)})


def test_moves_take_no_longer_than_trajectories():
    for rare, looks, lengths, every in (
        (False, [13, 13], [5, 8], 16),
        (True, [13, 13], [5, 8], 2),
        (False, [6, 8, 4], [20, 28], 2),
        (False, [], [3], 0),
    ):
        chains = SimpleNamespace(_is_rarely_moved=rare)
        assert sampler.Chains._balance(chains, lengths, looks) == every


def far_apart(weight):
    """Two modes, the narrow one of which no chain finds by itself."""
    x = pyro.sample("x", dist.Normal(0.0, 30.0).expand([2]).to_event(1))
    wide = dist.Normal(0.0, 1.0).log_prob(x).sum() + torch.log1p(-weight)
    narrow = dist.Normal(8.0, 0.5).log_prob(x).sum() + weight.log()
    pyro.factor("modes", torch.logaddexp(wide, narrow))


def test_temperatures_find_modes(tmp_path, monkeypatch):
    options = {"num_chains": 8, "warmup": 200, "progress": False, "start": {"x": torch.zeros(2)}}
    whole = sample_posterior(far_apart, torch.tensor(0.3), num_samples=1000, hottest=20, **options)
    in_narrow = (whole.samples["x"].mean(-1) > 5).double()
    size = float(effective_sample_size(in_narrow, chain_dim=0, sample_dim=1))
    assert size > 150
    assert abs(in_narrow.mean() - 0.3) < 4 * (0.3 * 0.7 / size) ** 0.5
    assert whole.settings["trips"] > 330
    assert re.search(
        r"temperatures: 7 from 1 to 20, at least \d\d% of their exchanges accepted, \d+ trips", whole.summary()
    )

    path = tmp_path / "run.pt"
    sample_posterior(far_apart, torch.tensor(0.3), num_samples=50, hottest=20, checkpoint=path, **options)
    monkeypatch.setattr(sampler.Chains, "warm_up", None)
    longer = sample_posterior(far_apart, torch.tensor(0.3), num_samples=60, hottest=20, checkpoint=path, **options)
    assert torch.allclose(longer.samples["x"], whole.samples["x"][:, :60])
    with pytest.raises(ValueError, match="checkpoint has the draws of another run: its settings"):
        sample_posterior(far_apart, torch.tensor(0.3), num_samples=60, hottest=10, checkpoint=path, **options)


def depends_on_values():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        pyro.sample("y", dist.Normal(0.0, 1.0))


def discrete():
    pyro.sample("k", dist.Bernoulli(0.5))


def improper():
    pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))


def subsampled():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 10, subsample_size=3):
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.zeros(3))


def without_latents():
    pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))


def mixed():
    pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2), 1.0)))


def impossible():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Uniform(0.0, 1.0), obs=2.0 + 0 * x)


def half_a_count():
    pyro.sample("n", dist.Poisson(pyro.sample("rate", dist.Gamma(1.0, 1.0))), obs=torch.tensor(1.5))


def endless():
    pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("n", dist.Poisson(1.0), infer={"enumerate": "parallel"})


def noisy():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(x + torch.randn(()), 1.0), obs=torch.tensor(0.0))


def known_in_part():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 2):
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.zeros(2), obs_mask=torch.tensor([True, False]))


def masked():
    with pyro.plate("points", 2), pyro.poutine.mask(mask=torch.tensor([True, False])):
        pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(1.0)))


def below_zero():
    pyro.sample("y", dist.Exponential(pyro.sample("x", dist.LogNormal(0.0, 1.0))), obs=torch.tensor(-1.0))


def off_the_hyperboloid():
    point = hdist.WrappedNormal(Lorentz(1.0).origin(2), pyro.sample("x", dist.LogNormal(0.0, 1.0)), Lorentz(1.0))
    pyro.sample("y", point, obs=torch.tensor([2.0, 0.1, 0.1]))


def bounded_by_kind():
    k = pyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    pyro.sample("x", dist.Uniform(0.0, 1 + k))


def curved_by_kind():
    k = pyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(1 + k)))


def scaled_noise():
    with pyro.poutine.scale(scale=2.0):
        pyro.sample("z", hdist.WrappedNormal(Sphere(1.0).origin(2), 1.0, Sphere(1.0)), infer={"noise": True})


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (known_in_part, "site 'y_unobserved' is what obs_mask= makes"),
        (masked, "site 'z' is a latent with a mask"),
        (below_zero, "site 'y' is observed to have values that its distribution cannot have"),
        (off_the_hyperboloid, "site 'y' is observed to have values that its distribution cannot have"),
        (bounded_by_kind, "the support of site 'x', or its curvature, depends on a site that is enumerated"),
        (curved_by_kind, "the support of site 'z', or its curvature, depends on a site that is enumerated"),
        (scaled_noise, "site 'z' is drawn by its noise, whose density cannot be scaled"),
        (half_a_count, "site 'n' is observed to have values that its distribution cannot have"),
        (endless, "site 'n' cannot be enumerated, as Poisson has no list of its values"),
        (noisy, "model draws random numbers that belong to no site"),
        (depends_on_values, "structure of model depends on values: site 'y'"),
        (discrete, "site 'k' is discrete and is not enumerated"),
        (improper, "site 'x' has an improper prior"),
        (subsampled, "plate 'data' of model draws a subsample"),
        (mixed, "site 'x' has a support that torch has no bijection for .*; write it by other sites, a mixture by"),
        (without_latents, "model has no continuous latent"),
        (impossible, "no point of positive density was found: site 'y' has density 0"),
    ],
)
def test_what_is_refused(program, words):
    with pytest.raises(ValueError, match=words):
        sample_posterior(program, num_chains=4, progress=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_chains": 1}, "num_chains must be"),
        ({"num_samples": 0}, "num_samples must be"),
        ({"warmup": 3}, "warmup must be"),
        ({"seed": -1}, "seed must be"),
        ({"hottest": 0.5}, "hottest must be a temperature of at least 1, got 0.5; 4 is often enough"),
        ({"hottest": float("inf")}, "hottest must be"),
    ],
)
def test_options(options, words):
    with pytest.raises(ValueError, match=words):
        run(**options)


def test_energies_of_points():
    """Of a centre that is the origin in some runs, by a kind that is summed out or by a latent; of a density that is
    scaled, which its measure is not; and of the uniform distribution."""
    ball, sphere = PoincareBall(0.7), Sphere(1.0)
    places = ball.from_normal_coords(None, torch.tensor([[0.0, 0.0], [1.5, 0.5]]))

    def of_a_kind():
        k = pyro.sample("k", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        pyro.sample("z", hdist.WrappedNormal(places[k.long()], 0.5, ball))

    def of_a_latent():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("z", hdist.WrappedNormal(places[1] * (a - 3).clamp(min=0), 0.5, ball))

    def scaled():
        with pyro.poutine.scale(scale=2.5), pyro.plate("points", 2):
            pyro.sample("z", hdist.RiemannianNormal(torch.zeros(2), 1.0, ball))

    def uniform():
        pyro.sample("z", hdist.HypersphericalUniform(3))

    def normal(z, loc, scale=0.5):
        return hdist.WrappedNormal(loc, scale, ball).log_prob(z)

    v = torch.tensor([0.9, -0.4])
    z, log_det = ball.from_unconstrained(v), ball.log_det_unconstrained(v)
    both = torch.tensor([[0.9, -0.4], [0.2, 0.3]])
    riemannian = hdist.RiemannianNormal(torch.zeros(2), 1.0, ball).log_prob(ball.from_unconstrained(both))
    kinds = normal(z, places) + torch.tensor([0.7, 0.3]).log()
    cases = (
        (of_a_kind, v, kinds.logsumexp(0) + log_det),
        (
            of_a_latent,
            torch.tensor([3.5, *v]),
            dist.Normal(0.0, 1.0).log_prob(torch.tensor(3.5)) + normal(z, places[1] * 0.5) + log_det,
        ),
        (scaled, both.flatten(), (2.5 * riemannian + ball.log_det_unconstrained(both)).sum()),
        (uniform, v, sphere.log_det_unconstrained(v) - math.log(4 * math.pi)),
    )
    for program, vector, log_density in cases:
        pyro.set_rng_seed(0)
        torch.testing.assert_close(Energy(program, (), {})(vector)[0], -log_density, msg=program.__name__)


def test_supports_that_move_are_not_looked_at():
    """Data outside of the support at a draw of the prior may be inside of it at another; bounds may lie deep inside."""

    def program():
        width = pyro.sample("width", dist.LogNormal(0.0, 0.1))
        uniform = dist.Uniform(torch.zeros(2), width * torch.ones(2))
        pyro.sample("x", dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), uniform), obs=torch.tensor(5.0))

    assert Energy(program, (), {})(torch.tensor([3.0]))[0].isfinite()


def test_energies_are_as_wide_as_the_latents():
    """Whatever the data are."""

    def program():
        x = pyro.sample("x", dist.Normal(torch.zeros((), dtype=torch.float32), 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(2.0, dtype=torch.float64))

    energy = Energy(program, (), {})
    vector = energy.vector_of({"x": torch.tensor(0.5, dtype=torch.float32)})
    assert energy.dtype == vector.dtype == energy(vector)[0].dtype == torch.float32


def test_names_of_sites_mean_nothing():
    def program():
        x = pyro.sample("x_coords", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        pyro.deterministic("x", x.exp())

    assert Energy(program, (), {}).values(torch.ones(2)).keys() == {"x_coords", "x"}


def test_sites_that_see_an_orientation():
    [block] = blocks({"z": torch.Size([5, 2])}, torch.zeros(10))
    x = torch.randn(6, 10)
    block.reference[0], block.weight[:] = torch.randn(5, 2), 1.0

    def values(vector):
        return {"first": vector[0], "flag": vector[0] > 0, "size": vector.norm()}

    target = SimpleNamespace(filled=lambda x: x, blocks=[block], energy=SimpleNamespace(values=values))
    chains = SimpleNamespace(target=target, draws=[x])
    assert sampler.Chains._oriented(chains, {"first", "flag", "size"}) == ["first", "flag"]
    assert sampler.Chains._oriented(chains, {"size"}) == []


def test_mirror_images_are_two_modes():
    """Of the same energy; and every mode has its share of the chains, to one."""

    def program():
        x = pyro.sample("x", dist.Uniform(-9.0, 9.0))
        pyro.sample("y", dist.Normal(x.abs(), 0.1), obs=torch.tensor(2.0))

    pyro.set_rng_seed(0)
    target = Target(Energy(program, (), {}), 6)
    found = modes(target, target.descend(torch.tensor([[2.0], [-2.0], [2.1], [-1.9], [2.0], [-2.0]]), 1000)[0])
    modes_at = sorted(target.energy.values(mode.vector)["x"].item() for mode in found)
    assert modes_at == pytest.approx([-2.0, 2.0], abs=0.002)
    for _ in range(5):
        assert (start._places(target, found) > 0).sum() == 3


@pytest.mark.parametrize("largest", [1000, 10])
def test_a_spike_of_low_energy_is_no_start(largest, monkeypatch):
    """Where a scale tends to 0, and what it scales with it, the density has no bound and next to no mass."""
    monkeypatch.setattr(start, "_LARGEST_DENSE", largest)
    pyro.set_rng_seed(0)
    observed = torch.randn(20, 2) + torch.randn(3, 20, 2)

    def program():
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        effects = pyro.sample("effects", dist.Normal(0.0, scale).expand([20, 2]).to_event(2))
        pyro.sample("y", dist.Normal(effects, 1.0).expand([3, 20, 2]).to_event(3), obs=observed)

    pyro.set_rng_seed(0)
    energy = Energy(program, (), {})
    target = Target(energy, 16)
    fits, energies = target.descend(target.prior, 1000)
    scales = torch.stack([energy.values(x)["scale"] for x in fits])
    proper = scales > 0.5
    assert 0 < proper.sum() < 16
    assert energies[~proper].max() < energies[proper].min() - 100
    # The best of these fits, and where chains begin: after fits that see the density of the noise, without a spike.
    begin = find_start(target, None)
    begins = [modes(target, fits)[0].vector, *begin.x, begin.best]
    begins = torch.stack([energy.values(x)["scale"] for x in begins])
    assert (begins - scales[proper].mean()).abs().max() < 0.5


def test_where_programs_of_many_numbers_begin(monkeypatch):
    """Around the fits, as others do, with what numbers tell each by itself."""
    width = torch.tensor([0.01, 0.1, 1.0]).repeat(4)

    def program(observed):
        x = pyro.sample("x", dist.Normal(0.0, 3.0).expand([12]).to_event(1))
        y = pyro.sample("y", dist.Normal(x.sum(), 1.0))
        pyro.sample("z", dist.Normal(torch.stack([x, x + 0.0 * y]), width).to_event(2), obs=observed)

    pyro.set_rng_seed(0)
    observed = 3 * torch.randn(12) + torch.zeros(2, 12)
    target = Target(Energy(program, (observed,), {}), 5)
    at = target.prior[0]
    matrix = fits.hessian(target.gradients, at, 5)
    expected = (torch.cat([2 / width**2 + 1 / 9, torch.zeros(1)])).diag()
    expected += torch.cat([torch.ones(12), -torch.ones(1)]).outer(torch.cat([torch.ones(12), -torch.ones(1)]))
    torch.testing.assert_close(matrix, expected.to(matrix), rtol=0.02, atol=0.02)
    torch.testing.assert_close(fits.diagonal(target.gradients, at, 5), matrix.diagonal())
    monkeypatch.setattr(start, "_LARGEST_DENSE", 12)
    begin = find_start(target, None)
    torch.testing.assert_close(begin.root, matrix.diagonal().rsqrt(), rtol=0.02, atol=0.0)
    away = torch.stack([target.energy.values(x)["x"] for x in begin.x]) - observed[0]
    assert (away.abs() < 5 * width).all()


def test_where_every_fit_ends_in_a_spike_noise_tells_where_to_begin():
    pyro.set_rng_seed(0)
    observed = torch.randn(20) + 2 * torch.randn(20)

    def program():
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        effects = pyro.sample("effects", dist.Normal(0.0, scale).expand([20]).to_event(1))
        pyro.sample("y", dist.Normal(effects, 2.0).to_event(1), obs=observed)

    target = Target(Energy(program, (), {}), 8)
    fits, _ = target.descend(target.prior, 1000)
    assert max(target.energy.values(x)["scale"] for x in fits) < 0.01
    begin = find_start(target, None)
    scales = torch.stack([target.energy.values(x)["scale"] for x in begin.x])
    assert scales.min() > 0.01
    # Draws of the posterior, from 10,000 of the prior of the scale: effects are integrated by hand.
    prior = torch.randn(10_000).abs()
    weights = dist.Normal(0.0, (4 + prior.square()).sqrt().unsqueeze(-1)).log_prob(observed).sum(-1).softmax(0)
    drawn = prior[weights.multinomial(1000, replacement=True)]
    assert drawn.quantile(0.01) < scales.median() < drawn.quantile(0.99)


def located(observed):
    """A curvature, and two points of which the distances to the origin and to each other are known roughly."""
    c = pyro.sample("c", dist.LogNormal(0.0, 0.7))
    ball = PoincareBall(c)
    with pyro.plate("points", 3):
        z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, ball))
    d = ball.dist(z, z.roll(1, -2))
    with pyro.plate("pairs", 3):
        pyro.sample("d", dist.Normal(d, 0.3), obs=observed)


@pytest.mark.slow
def test_a_drawn_curvature():
    """Beside importance sampling from the prior."""
    observed = torch.tensor([1.5, 2.0, 1.8])
    torch.manual_seed(0)
    c = dist.LogNormal(0.0, 0.7).sample((1_000_000,))
    ball = PoincareBall(c.unsqueeze(-1))
    z = hdist.WrappedNormal(torch.zeros(3, 2), 1.0, ball, validate_args=False).sample()
    weights = dist.Normal(ball.dist(z, z.roll(1, -2)), 0.3).log_prob(observed).sum(-1).softmax(0)
    posterior = sample_posterior(located, observed, num_chains=16, num_samples=1500, progress=False)
    assert posterior.converged, posterior.summary()
    assert posterior.gauges == [["z"]]
    size = min(posterior.diagnostics()["c"].ess_bulk, 1 / weights.square().sum().item())
    for power in (1, 2):
        expected, spread = (weights * c**power).sum(), c.pow(power)
        error = 4 * ((weights * (spread - expected).square()).sum() / size).sqrt() * 2**0.5
        assert abs(posterior.samples["c"].pow(power).mean() - expected) < error
    assert posterior.manifolds["z"].curvatures[0].shape == (16, 1500, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]().exact])
def test_exact_moments(name):
    assert measure(name, 0, "cpu", {})["worst_z"] < 4


@pytest.mark.slow
def test_twelve_leaves():
    row = measure("12 leaves", 0, "cpu", {})
    assert row["r_hat"] <= 1.015
    assert row["ess"] >= 400
    assert row["c"] == pytest.approx(2.75, abs=0.1)


@pytest.mark.gpu
def test_on_a_gpu():
    with torch.device("cuda"):
        observed = torch.tensor([1.5, 2.0, 1.8])
        posterior = sample_posterior(located, observed, num_chains=16, num_samples=200, warmup=200, progress=False)
    assert posterior.samples["z"].is_cuda
    options = {"num_chains": 16, "num_samples": 1000, "warmup": 200, "progress": False, "hottest": 20}
    with torch.device("cuda"):
        hot = sample_posterior(far_apart, torch.tensor(0.3), start={"x": torch.zeros(2)}, **options)
    assert (hot.samples["x"].mean(-1) > 5).double().mean().item() == pytest.approx(0.3, abs=0.1)
    cpu = sample_posterior(located, observed.cpu(), num_chains=16, num_samples=200, warmup=200, progress=False)
    means = [p.samples["c"].log().mean().item() for p in (posterior, cpu)]
    assert means[0] == pytest.approx(means[1], abs=0.25)


@pytest.mark.slow
def test_start_in_a_good_arrangement():
    """Of the branches of a tree: fits alone end hundreds of nats above it."""
    case = CASES["tree of 40"]()
    with sampler.seeded(0):
        target = Target(Energy(case.model, case.args, {}), 8)
        _, energies = target.descend(target.prior, 1000)
        start = find_start(target, None)
        at_best = target.energy(start.best)[0].item()
    assert energies.min() > 1000
    assert at_best < 100
