"""The importance-weighted estimate of the evidence."""

import functools
import itertools
import math
import subprocess
import sys
import textwrap

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from torch._subclasses.fake_tensor import FakeTensorMode

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.accelerate.bounds import marginal
from pyro_hyperbolic.infer import log_marginal_likelihood
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE
from tests.helpers import LargestStorage, in_turns, same


# z ~ N(0, 1), x | z ~ N(z, 1): x ~ N(0, 2) and z | x ~ N(x/2, 1/2). The guide is wider than the posterior, so that the
# weights vary and are bounded.
def model(x):
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(z, 1.0), obs=x)


def guide(x):
    with pyro.plate("data", len(x)):
        pyro.sample("z", dist.Normal(x / 2, 1.0))


def evidence(x):
    return dist.Normal(0.0, math.sqrt(2)).log_prob(x).double()


def observations(size=5):
    return math.sqrt(2) * torch.randn(size)


def check_close(model, guide, data, expected, num_samples=4000, **kwargs):
    """Estimates within five of their standard errors, which must say something."""
    args = data if isinstance(data, tuple) else (data,)
    estimate, error = log_marginal_likelihood(
        model, guide, *args, num_samples=num_samples, standard_error=True, **kwargs
    )
    assert estimate.shape == error.shape == expected.shape
    assert ((estimate - expected).abs() < 5 * error).all()
    assert (error < 0.1).all()


class TestConjugate:
    def test_evidence(self):
        x = observations()
        check_close(model, guide, x, evidence(x))

    def test_exact_posterior_gives_the_exact_evidence(self):
        x = observations()

        def posterior(x):
            with pyro.plate("data", len(x)):
                pyro.sample("z", dist.Normal(x / 2, math.sqrt(0.5)))

        for num_samples in (1, 7):
            estimate, error = log_marginal_likelihood(model, posterior, x, num_samples=num_samples, standard_error=True)
            same(estimate, evidence(x), 1e-5)
            assert (error < 1e-3).all()

    def test_errors_are_honest(self):
        x = observations(200)
        estimate, error = log_marginal_likelihood(model, guide, x, num_samples=500, chunk=10**5, standard_error=True)
        score = (estimate - evidence(x)) / error
        # Of 200 scores, 191 are within 1.96 on average; 9 more or less is three standard deviations.
        assert 181 <= (score.abs() < 1.96).sum() <= 199
        assert 0.85 < score.std() < 1.15
        assert abs(score.mean()) < 5 / math.sqrt(200)

    def test_errors_fall_as_the_root_of_the_samples(self):
        x = observations()
        few, many = (
            log_marginal_likelihood(model, guide, x, num_samples=k, standard_error=True)[1] for k in (200, 20_000)
        )
        same(few / many, torch.full((5,), 10.0), 0.25)

    def test_more_samples_tighten_the_bound(self):
        x = observations(2000)
        gaps = [
            (evidence(x) - log_marginal_likelihood(model, guide, x, num_samples=k)).mean().item() for k in (1, 4, 64)
        ]
        assert gaps[0] > 2 * gaps[1] > 4 * gaps[2] > 0

    def test_an_auto_guide(self):
        x = observations()
        auto = AutoNormal(model)
        auto(x)
        with torch.no_grad():
            auto.locs.z.copy_(x / 2)
            auto.scales.z = torch.ones(5)
        # The guide keeps one set of parameters per datum, so all data go in at once.
        check_close(model, auto, x, evidence(x), chunk=10**5)

    def test_a_factor_is_part_of_the_density(self):
        def with_factor(x):
            with pyro.plate("data", len(x)):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.factor("x", dist.Normal(z, 1.0).log_prob(x))

        x = observations()
        check_close(with_factor, guide, x, evidence(x))

    def test_deterministic_sites_have_no_density(self):
        def with_records(x):
            pyro.deterministic("total", x.sum())
            with pyro.plate("data", len(x)):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.deterministic("square", z * z, event_dim=0)
                pyro.sample("x", dist.Normal(z, 1.0), obs=x)

        x = observations()
        check_close(with_records, guide, x, evidence(x))

    def test_several_latents_and_observations(self):
        def longer(x, y):
            with pyro.plate("data", len(x)):
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                w = pyro.sample("w", dist.Normal(z, 1.0))
                pyro.sample("x", dist.Normal(w, 1.0), obs=x)
                pyro.sample("y", dist.Normal(0.0, 1.0).expand((3,)).to_event(1), obs=y)

        def longer_guide(x, y):
            with pyro.plate("data", len(x)):
                z = pyro.sample("z", dist.Normal(x / 3, 1.0))
                pyro.sample("w", dist.Normal((x + z) / 2, 1.0))

        x, y = observations(), torch.randn(5, 3)
        expected = dist.Normal(0.0, math.sqrt(3)).log_prob(x) + dist.Normal(0.0, 1.0).log_prob(y).sum(-1)
        check_close(longer, longer_guide, (x, y), expected.double())


PARALLEL = {"enumerate": "parallel"}
WEIGHTS, CENTRES = torch.tensor([0.2, 0.5, 0.3]), torch.tensor([-2.0, 0.0, 3.0])


def mixture(x, infer=PARALLEL):
    with pyro.plate("data", len(x)):
        k = pyro.sample("k", dist.Categorical(WEIGHTS), infer=infer)
        z = pyro.sample("z", dist.Normal(CENTRES[k], 1.0))
        pyro.sample("x", dist.Normal(z, 1.0), obs=x)


def wide_guide(x):
    with pyro.plate("data", len(x)):
        pyro.sample("z", dist.Normal(x / 2, 2.0))


def mixture_evidence(x):
    distribution = dist.MixtureSameFamily(dist.Categorical(WEIGHTS), dist.Normal(CENTRES, math.sqrt(2)))
    return distribution.log_prob(x).double()


class TestEnumerated:
    """Discrete latents that the guide lacks."""

    def test_mixture(self):
        x = 2 * observations()
        check_close(mixture, wide_guide, x, mixture_evidence(x), chunk=10**5)

    @pytest.mark.parametrize("size", [1, 5])
    @pytest.mark.parametrize("num_samples", [1, 4])
    def test_as_the_mixture_distribution_with_the_same_noise(self, num_samples, size):
        def marginal(x):
            with pyro.plate("data", len(x)):
                distribution = dist.MixtureSameFamily(dist.Categorical(WEIGHTS), dist.Normal(CENTRES, 1.0))
                z = pyro.sample("z", distribution)
                pyro.sample("x", dist.Normal(z, 1.0), obs=x)

        x, estimates = observations(size), []
        for program in (mixture, marginal):
            torch.manual_seed(3)
            estimates.append(log_marginal_likelihood(program, wide_guide, x, num_samples=num_samples))
        same(*estimates, 1e-5)

    def test_observation_that_depends_on_the_component(self):
        def direct(x):
            with pyro.plate("data", len(x)):
                k = pyro.sample("k", dist.Categorical(WEIGHTS), infer=PARALLEL)
                pyro.sample("x", dist.Normal(CENTRES[k], math.sqrt(2)), obs=x)

        def empty(x):
            pyro.plate("data", len(x))

        x = 2 * observations()
        same(log_marginal_likelihood(direct, empty, x, num_samples=3), mixture_evidence(x), 1e-5)

    def test_chain_whose_states_share_dimensions(self):
        transition = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
        levels = torch.tensor([0.0, 2.0])

        def chain(y):
            with pyro.plate("data", len(y)):
                k = 0
                for t in pyro.markov(range(y.shape[1])):
                    k = pyro.sample(f"k{t}", dist.Categorical(transition[k]), infer=PARALLEL)
                    z = pyro.sample(f"z{t}", dist.Normal(levels[k], 1.0))
                    pyro.sample(f"y{t}", dist.Normal(z, 1.0), obs=y[:, t])

        def chain_guide(y):
            with pyro.plate("data", len(y)):
                for t in range(y.shape[1]):
                    pyro.sample(f"z{t}", dist.Normal(y[:, t] / 2 + 0.5, 1.1))

        y = torch.randn(4, 5) + 1
        emission = dist.Normal(levels, math.sqrt(2)).log_prob(y.unsqueeze(-1))
        forward = transition[0].log() + emission[:, 0]
        for t in range(1, 5):
            forward = (forward.unsqueeze(-1) + transition.log()).logsumexp(1) + emission[:, t]
        check_close(chain, chain_guide, y, forward.logsumexp(-1).double(), chunk=10**5)

    def test_two_latents_of_one_datum(self):
        def sum_of_two(x):
            with pyro.plate("data", len(x)):
                i = pyro.sample("i", dist.Categorical(WEIGHTS), infer=PARALLEL)
                j = pyro.sample("j", dist.Categorical(WEIGHTS), infer=PARALLEL)
                z = pyro.sample("z", dist.Normal(CENTRES[i] + CENTRES[j], 1.0))
                pyro.sample("x", dist.Normal(z, 1.0), obs=x)

        x = 2 * observations()
        distribution = dist.Normal((CENTRES[:, None] + CENTRES).flatten(), math.sqrt(2))
        weights = dist.Categorical((WEIGHTS[:, None] * WEIGHTS).flatten())
        expected = dist.MixtureSameFamily(weights, distribution).log_prob(x).double()
        check_close(sum_of_two, wide_guide, x, expected, chunk=10**5)

    def test_a_latent_that_the_guide_draws_is_not_summed_out(self):
        def drawing(x):
            with pyro.plate("data", len(x)):
                pyro.sample("k", dist.Categorical(WEIGHTS))
                pyro.sample("z", dist.Normal(x / 2, 2.0))

        x = 2 * observations()
        check_close(mixture, drawing, x, mixture_evidence(x), chunk=10**5)

    @pytest.mark.parametrize("infer", [{}, {"enumerate": "sequential"}])
    def test_a_latent_that_nobody_accounts_for_is_named(self, infer):
        with pytest.raises(
            ValueError, match=r"site 'k' of the model is a latent that the guide does not have.*parallel"
        ):
            log_marginal_likelihood(functools.partial(mixture, infer=infer), guide, observations(), num_samples=20)


# Two observations N(z, 1) of each datum, of which some are missing. With the exact posterior as the guide all weights
# are the same, so that one sample gives the evidence.
SEEN = torch.tensor([[True, True], [True, False], [False, True], [False, False], [True, True]])


def posterior(y, seen, columns=()):
    """:param columns: those whose missing values it draws too."""
    count = seen.sum(-1)
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal((y * seen).sum(-1) / (count + 1), (count + 1.0).rsqrt()))
        for j in columns:
            with poutine.mask(mask=~seen[:, j]):
                pyro.sample(f"y{j}_unobserved", dist.Normal(z, 1.0))


def seen_evidence(y, seen):
    count, total, square = seen.sum(-1), (y * seen).sum(-1), (y * seen).square().sum(-1)
    return -0.5 * (count * math.log(2 * math.pi) + (count + 1.0).log() + square - total.square() / (count + 1)).double()


def in_plate(observe):
    def model(y, seen):
        with pyro.plate("data", len(y)):
            observe(y, seen, pyro.sample("z", dist.Normal(0.0, 1.0)))

    return model


def by_handler(y, seen, z):
    for j in range(2):
        with poutine.mask(mask=seen[:, j]):
            pyro.sample(f"y{j}", dist.Normal(z, 1.0), obs=y[:, j])


def by_distribution(y, seen, z):
    pyro.sample("y", dist.Normal(z.unsqueeze(-1), 1.0).expand([*z.shape, 2]).mask(seen).to_event(1), obs=y)


def by_obs_mask(y, seen, z):
    for j in range(2):
        pyro.sample(f"y{j}", dist.Normal(z, 1.0), obs=y[:, j], obs_mask=seen[:, j])


def in_nested_plate(y, seen, z):
    with pyro.plate("columns", 2), poutine.mask(mask=seen.T.unsqueeze(-2)):
        pyro.sample("y", dist.Normal(z, 1.0), obs=y.T.unsqueeze(-2))


def none_at_all(y, seen, z):
    by_handler(y, seen, z)
    with poutine.mask(mask=False):
        pyro.sample("other", dist.Normal(z, 1.0), obs=y[:, 0])


MASKS = {
    "poutine.mask": (in_plate(by_handler), posterior),
    "fn.mask": (in_plate(by_distribution), posterior),
    "obs_mask": (in_plate(by_obs_mask), posterior),
    "obs_mask, drawn by the guide": (in_plate(by_obs_mask), functools.partial(posterior, columns=(0, 1))),
    "nested plate": (in_plate(in_nested_plate), posterior),
    "mask=False": (in_plate(none_at_all), posterior),
    "beside a scale": (poutine.scale(in_plate(by_handler), scale=3.0), poutine.scale(posterior, scale=0.2)),
}


class TestMasks:
    """What a mask switches off is not observed."""

    @pytest.mark.parametrize(
        ("name", "options"),
        [*in_turns(MASKS, [{}, {"chunk": 3}]), ("poutine.mask", {"compile": True}), ("obs_mask", {"chunk": 3})],
    )
    def test_exact_evidence(self, name, options):
        y = 2 * torch.randn(5, 2)
        estimate = log_marginal_likelihood(*MASKS[name], y, SEEN, num_samples=4, **options)
        same(estimate, seen_evidence(y, SEEN), 1e-5)

    def test_by_hand(self):
        """One observation, at 4.2, is missing, and the other is at 0.3."""
        y, seen = torch.tensor([[0.3, 4.2]]), SEEN[1:2]
        estimate = log_marginal_likelihood(*MASKS["poutine.mask"], y, seen, num_samples=4)
        assert estimate.item() == pytest.approx(dist.Normal(0.0, math.sqrt(2)).log_prob(y[0, 0]).item())  # -1.288

    @pytest.mark.parametrize("masked", ["nothing more", "latent"])
    def test_a_latent_that_is_summed_out_sums_to_one(self, masked):
        def classes(y, seen):
            with pyro.plate("data", len(y)), poutine.mask(mask=seen[:, 0] if masked == "latent" else True):
                k = pyro.sample("k", dist.Categorical(WEIGHTS), infer=PARALLEL)
                with poutine.mask(mask=seen[:, 0]):
                    pyro.sample("y", dist.Normal(CENTRES[k], math.sqrt(2)), obs=y[:, 0])

        y = torch.randn(5, 2)
        estimate = log_marginal_likelihood(classes, lambda y, seen: None, y, SEEN, num_samples=3)
        same(estimate, mixture_evidence(y[:, 0]) * SEEN[:, 0], 1e-5)

    def test_missing_values_that_others_depend_on(self):
        """z -> x -> y, where x may be missing: the model draws it, and the weight of y counts it."""

        def chain(x, y, seen):
            with pyro.plate("data", len(x)):
                value = pyro.sample("x", dist.Normal(0.0, 1.0), obs=x, obs_mask=seen)
                pyro.sample("y", dist.Normal(value, 1.0), obs=y)

        x, y, seen = torch.randn(5), torch.randn(5), SEEN[:, 0]
        complete = dist.Normal(0.0, 1.0).log_prob(x) + dist.Normal(x, 1.0).log_prob(y)
        expected = torch.where(seen, complete, dist.Normal(0.0, math.sqrt(2)).log_prob(y)).double()
        estimate, error = log_marginal_likelihood(
            chain, lambda x, y, seen: None, x, y, seen, num_samples=4000, standard_error=True
        )
        assert ((estimate - expected).abs() <= 5 * error + 1e-5).all()
        assert (error < 0.1).all()


class TestNestedPlates:
    """A plate inside that of the data."""

    @pytest.mark.parametrize("enumerated", [False, True])
    def test_as_one_event_with_the_same_noise(self, enumerated):
        def nested(y):
            with pyro.plate("data", len(y)):
                k = pyro.sample("k", dist.Categorical(WEIGHTS), infer=PARALLEL) if enumerated else torch.tensor(1)
                z = pyro.sample("z", dist.Normal(CENTRES[k], 1.0))
                with pyro.plate("columns", 3):
                    pyro.sample("y", dist.Normal(z + CENTRES[k], 0.5), obs=y.T.unsqueeze(-2))

        def whole(y):
            with pyro.plate("data", len(y)):
                k = pyro.sample("k", dist.Categorical(WEIGHTS), infer=PARALLEL) if enumerated else torch.tensor(1)
                z = pyro.sample("z", dist.Normal(CENTRES[k], 1.0))
                loc = (z + CENTRES[k]).unsqueeze(-1)
                pyro.sample("y", dist.Normal(loc, 0.5 * torch.ones(3)).to_event(1), obs=y)

        def first_column(y):
            wide_guide(y[:, 0])

        y, estimates = torch.randn(5, 3), []
        for program in (nested, whole):
            torch.manual_seed(3)
            estimates.append(log_marginal_likelihood(program, first_column, y, num_samples=4))
        same(*estimates, 1e-5)

    def columns(self, **options):
        """The conjugate pair in every column."""

        def columns_model(y):
            with pyro.plate("data", len(y)), pyro.plate("columns", 3, **options) as index:
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
                pyro.sample("y", dist.Normal(z, 1.0), obs=y.T.unsqueeze(-2)[index])

        def columns_guide(y):
            with pyro.plate("data", len(y)), pyro.plate("columns", 3, **options) as index:
                pyro.sample("z", dist.Normal(y.T.unsqueeze(-2)[index] / 2, 1.0))

        return columns_model, columns_guide

    def test_latents_in_them(self):
        y = torch.randn(5, 3)
        check_close(*self.columns(), y, evidence(y).sum(-1))

    def test_subsampling_them_is_refused(self):
        with pytest.raises(ValueError, match=r"in the plate 'columns', which shows 2 of its 3 elements"):
            log_marginal_likelihood(*self.columns(subsample_size=2), torch.randn(5, 3), num_samples=4)

    def test_subsampling_in_a_loop_is_refused(self):
        def columns_model(y):
            data = pyro.plate("data", len(y), dim=-1)
            with data:
                z = pyro.sample("z", dist.Normal(0.0, 1.0))
            for j in pyro.plate("columns", 3, subsample_size=2):
                with data:
                    pyro.sample(f"y{j}", dist.Normal(z, 1.0), obs=y[:, j])

        with pytest.raises(ValueError, match=r"in the plate 'columns', which shows 2 of its 3 elements"):
            log_marginal_likelihood(columns_model, lambda y: wide_guide(y[:, 0]), torch.randn(5, 3), num_samples=4)

    def test_summing_out_inside_of_them_is_refused(self):
        def nested(y):
            with pyro.plate("data", len(y)), pyro.plate("columns", 3):
                k = pyro.sample("k", dist.Categorical(WEIGHTS), infer=PARALLEL)
                pyro.sample("y", dist.Normal(CENTRES[k], 1.0), obs=y.T.unsqueeze(-2))

        with pytest.raises(ValueError, match=r"site 'k' is summed out in the plate 'columns'"):
            log_marginal_likelihood(nested, lambda y: None, torch.randn(5, 3), num_samples=4)


MODELS = {
    "euclidean": lambda: EuclideanVAE(2, 6, hidden_dim=8),
    "wrapped": lambda: HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=8),
    "riemannian": lambda: HyperbolicVAE(
        PoincareBall(1.4), 2, (2, 3), hidden_dim=8, prior="riemannian", posterior="riemannian", likelihood="normal"
    ),
    "float64 latents": lambda: HyperbolicVAE(PoincareBall(1.0), 3, 6, hidden_dim=8, latent_dtype=torch.float64),
}
every_vae = pytest.mark.parametrize("name", MODELS)


def build(name):
    """An auto-encoder whose posterior is as wide as its prior, so that the weights are bounded, and data."""
    vae = MODELS[name]()
    with torch.no_grad():
        vae.encoder.scale.bias.fill_(1.0)
        vae.encoder.loc.weight /= 10
    return vae, torch.rand(7, *vae.decoder.data_shape)


class TestAutoEncoders:
    @every_vae
    def test_by_brute_force_with_the_same_noise(self, name):
        vae, x = build(name)
        torch.manual_seed(3)
        estimate, error = log_marginal_likelihood(vae.model, vae.guide, x, num_samples=11, standard_error=True)
        assert estimate.dtype == torch.float64
        assert not estimate.requires_grad
        torch.manual_seed(3)
        with torch.no_grad():
            z = vae.encode(x).expand((11, 7)).sample().clone()
            weights = vae.decode(z).log_prob(x) + vae.prior().log_prob(z) - vae.encode(x).log_prob(z)
        weights = weights.double()
        same(estimate, weights.logsumexp(0) - math.log(11), 1e-5)
        ratio = (weights - estimate).exp()
        same(error, ratio.std(0, correction=0) / math.sqrt(11), 1e-4)

    @every_vae
    def test_chunks_agree(self, name):
        vae, x = build(name)
        torch.manual_seed(3)
        whole, first = log_marginal_likelihood(
            vae.model, vae.guide, x, num_samples=2000, chunk=10**6, standard_error=True
        )
        pieces, second = log_marginal_likelihood(
            vae.model, vae.guide, x, num_samples=2000, chunk=900, standard_error=True
        )
        assert not torch.equal(whole, pieces)
        assert ((whole - pieces).abs() < 5 * (first.square() + second.square()).sqrt()).all()
        assert (first < 0.1).all()

    @every_vae
    def test_above_the_elbo(self, name):
        vae, x = build(name)
        bound = -pyro.infer.Trace_ELBO(num_particles=300, vectorize_particles=True).loss(vae.model, vae.guide, x)
        assert log_marginal_likelihood(vae.model, vae.guide, x, num_samples=1000).sum() > bound

    @pytest.mark.parametrize("factor", [1, 100])
    def test_the_size_of_the_data_set_does_not_scale_it(self, factor):
        vae, x = build("wrapped")
        torch.manual_seed(3)
        plain = log_marginal_likelihood(vae.model, vae.guide, x, num_samples=20)
        torch.manual_seed(3)
        scaled = log_marginal_likelihood(vae.model, vae.guide, x, num_samples=20, data_size=factor * len(x))
        same(scaled, plain, 1e-6)

    def test_handlers_that_scale_do_not_scale_it(self):
        vae, x = build("wrapped")
        torch.manual_seed(3)
        plain = log_marginal_likelihood(vae.model, vae.guide, x, num_samples=20)
        torch.manual_seed(3)
        annealed = [poutine.scale(program, scale=0.1) for program in (vae.model, vae.guide)]
        same(log_marginal_likelihood(*annealed, x, num_samples=20), plain, 1e-6)

    def test_no_graph_and_no_change_of_the_model(self):
        vae, x = build("wrapped")
        state = {name: value.clone() for name, value in vae.state_dict().items()}
        log_marginal_likelihood(vae.model, vae.guide, x, num_samples=20)
        assert all(p.grad is None for p in vae.parameters())
        assert all(torch.equal(state[name], value) for name, value in vae.state_dict().items())
        assert torch.is_grad_enabled()


CHUNKS = [
    # data, samples, chunk: the largest number of pairs held at once, and of calls.
    (10, 4, 8192, 40, 1),
    (10, 4, 20, 20, 2),
    (10, 4, 7, 4, 10),
    (10, 4, 4, 4, 10),
    (10, 4, 3, 3, 20),
    (10, 4, 1, 1, 40),
    (1, 1, 1, 1, 1),
    (3, 7, 8, 7, 3),
    (3, 7, 20, 14, 2),
]


@pytest.mark.parametrize(("size", "num_samples", "chunk", "largest", "calls"), CHUNKS)
def test_chunks_are_bounded(size, num_samples, chunk, largest, calls):
    x = observations(size)
    seen, data = [], []

    def counting(x):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            assert z.shape[-1] == len(x)
            seen.append(z.numel())
            data.append(x)
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    estimate = log_marginal_likelihood(counting, guide, x, num_samples=num_samples, chunk=chunk)
    assert estimate.shape == (size,)
    assert max(seen) == largest <= chunk
    assert len(seen) == calls
    assert sum(seen) == size * num_samples
    # Every datum has had all its samples, in the order of the data.
    assert torch.equal(torch.cat(data).unique_consecutive(), x)


def with_memory_for(pairs, sizes):
    """The conjugate model where memory holds so many pairs of a datum and a sample; it notes how many it had."""

    def limited(x):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            if z.numel() > pairs:
                raise torch.OutOfMemoryError(f"{z.numel()} pairs")
            sizes.append(z.numel())
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    return limited


class TestMemoryEnds:
    @pytest.mark.parametrize(("size", "num_samples", "pairs", "chunk"), [(40, 500, 1100, 1024), (3, 9000, 2500, 2048)])
    def test_the_chunk_is_halved(self, size, num_samples, pairs, chunk):
        x, sizes, estimates = observations(size), [], []
        for options in ({}, {"chunk": chunk}):
            torch.manual_seed(3)
            estimates.append(
                log_marginal_likelihood(with_memory_for(pairs, sizes), guide, x, num_samples=num_samples, **options)
            )
        assert torch.equal(*estimates)
        assert sizes[: len(sizes) // 2] == sizes[len(sizes) // 2 :]
        assert chunk / 2 < max(sizes) <= chunk

    def test_later_data_go_on_with_the_smaller_one(self):
        x, sizes = torch.cat([torch.zeros(16), torch.ones(16)]), []

        def longer(x):
            with_memory_for(8192 if x[0] == 0 else 2048, sizes)(x)

        error = log_marginal_likelihood(longer, guide, x, num_samples=512, standard_error=True)
        assert sizes == [8192] + 4 * [2048]
        assert ((error[0] - evidence(x)).abs() < 5 * error[1]).all()

    @pytest.mark.parametrize(
        ("pairs", "chunk", "message"),
        [(0, None, "chunk=1: one pair of a datum and a sample is too many"), (500, 512, "chunk=512: pass a smaller")],
    )
    def test_a_chunk_that_was_asked_for_and_one_that_cannot_be_halved(self, pairs, chunk, message):
        with pytest.raises(torch.OutOfMemoryError, match=message):
            log_marginal_likelihood(with_memory_for(pairs, []), guide, observations(), num_samples=512, chunk=chunk)

    def test_the_chunk_of_a_gpu(self, monkeypatch):
        """A power of two that half of the free memory holds, by what a small run has allocated."""
        allocated, free, runs = [0], [0], []
        monkeypatch.setattr(marginal, "_allocations", lambda _: allocated[0])
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0] - 1000, None))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 1500)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 500)
        with FakeTensorMode():
            data = [torch.empty(4, 7, device="cuda")]

        def weights(batch, count):
            runs.append(count)
            if count * len(batch[0]) > 800:
                raise torch.OutOfMemoryError
            allocated[0] += 100 * count * len(batch[0])
            return torch.zeros(count, len(batch[0]))

        kept = marginal.Compiled()
        for free[0], expected in ((200 * 5000, 4096), (200 * 4096, 4096), (200 * 4095, 2048), (1, 1), (10**9, 1 << 19)):
            for own in (kept, None):
                assert marginal._chosen_chunk(weights, data, 200, own) == expected
        assert runs == [200] * 6  # what is kept is measured once
        assert marginal._chosen_chunk(weights, data, 5000, None) == 512


def test_memory_is_bounded_by_the_chunk():
    vae = HyperbolicVAE(PoincareBall(1.0), 2, 50, hidden_dim=20)
    x = torch.rand(3, 50)
    with LargestStorage() as largest:
        log_marginal_likelihood(vae.model, vae.guide, x, num_samples=400, chunk=100)
    assert 100 * 50 <= largest.numel <= 2 * 100 * 50


@pytest.mark.slow
def test_five_thousand_samples_of_a_thousand_images_fit_in_two_gigabytes():
    program = """
        import resource, torch
        from pyro_hyperbolic import PoincareBall
        from pyro_hyperbolic.infer import log_marginal_likelihood
        from pyro_hyperbolic.models import HyperbolicVAE
        vae = HyperbolicVAE(PoincareBall(1.4), 2, (28, 28), hidden_dim=32)
        estimate = log_marginal_likelihood(vae.model, vae.guide, torch.rand(1000, 28, 28), num_samples=5000)
        assert estimate.shape == (1000,) and estimate.isfinite().all()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=1800
    )
    kilobytes = int(done.stdout)
    # All at once would be 5000 * 1000 * 784 numbers, 16 GB a tensor.
    assert kilobytes < 2e6


class TestMistakes:
    @pytest.mark.parametrize("num_samples", [20, 5000])
    def test_global_latent(self, num_samples):
        # With 5000 samples and the default chunk, one datum is looked at a time: it must not pass for local.
        def with_global(x):
            w = pyro.sample("weight", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                z = pyro.sample("z", dist.Normal(w, 1.0))
                pyro.sample("x", dist.Normal(z, 1.0), obs=x)

        def global_guide(x):
            pyro.sample("weight", dist.Normal(0.0, 1.0))
            guide(x)

        with pytest.raises(ValueError, match="site 'weight' is outside of every data plate"):
            log_marginal_likelihood(with_global, global_guide, observations(), num_samples=num_samples)

    @pytest.mark.parametrize("size", [1, 5])
    def test_global_observation(self, size):
        def with_total(x):
            model(x)
            pyro.sample("total", dist.Normal(0.0, 1.0), obs=x.sum())

        with pytest.raises(ValueError, match="site 'total' is outside of every data plate"):
            log_marginal_likelihood(with_total, guide, observations(size), num_samples=20)

    def test_subsampling(self):
        vae, x = build("wrapped")
        with pytest.raises(ValueError, match=r"see 3 of 7 data.*without subsample_size"):
            log_marginal_likelihood(vae.model, vae.guide, x, num_samples=20, subsample_size=3)

    DATA = {
        "empty": ((torch.zeros(0),), {}, "same non-zero length"),
        "no tensor": ((), {}, "same non-zero length"),
        "two lengths": ((torch.zeros(3), torch.zeros(4)), {}, "same non-zero length"),
        "two lengths, by keyword": ((torch.zeros(3),), {"y": {"a": torch.zeros(4)}}, r"length.* got \[3, 4\]"),
        "no dimension": ((torch.zeros(()),), {}, "same non-zero length"),
        "number of samples without its keyword": ((torch.zeros(3), 20), {}, "num_samples=20 if it is the number of"),
    }

    @pytest.mark.parametrize("name", DATA)
    def test_data(self, name):
        args, kwargs, message = self.DATA[name]
        with pytest.raises(ValueError, match=message):
            log_marginal_likelihood(model, guide, *args, **kwargs)

    @pytest.mark.parametrize(
        ("name", "value"), [*itertools.product(["num_samples", "chunk"], [0, -1, 2.5, "many"]), ("num_samples", None)]
    )
    def test_counts(self, name, value):
        with pytest.raises(ValueError, match=f"{name} must be a positive integer, got {value!r}"):
            log_marginal_likelihood(model, guide, observations(), **{name: value})


def test_progress_bar(capsys):
    x = observations()
    torch.manual_seed(3)
    silent = log_marginal_likelihood(model, guide, x, num_samples=20)
    torch.manual_seed(3)
    shown = log_marginal_likelihood(model, guide, x, num_samples=20, progress=True)
    assert torch.equal(silent, shown)
    assert capsys.readouterr().out == ""
