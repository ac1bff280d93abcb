"""Auto-encoders of data: their arguments, their scales, their limits."""

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.optim import Adam
from torch import nn

from pyro_hyperbolic import Lorentz, PoincareBall, Stereographic
from pyro_hyperbolic.datasets import branching_diffusion
from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.geometry import from_signature
from pyro_hyperbolic.models import LIKELIHOODS, EuclideanVAE, HyperbolicVAE, ManifoldVAE
from pyro_hyperbolic.models.latent import bounded
from pyro_hyperbolic.nn import Log0, ManifoldModule, OneHot
from tests.helpers import ROUNDING, each, in_turns, same
from tests.models.cases import HYPERBOLIC_VAES, VAES

every_vae = each("case", VAES)
both = pytest.mark.parametrize("case", [VAES[0], VAES[-2]], ids=str)


@pytest.fixture(autouse=True)
def _validated():
    with pyro.validation_enabled(True):
        yield


def elbo(vae, *args, seed=5, **kwargs):
    pyro.set_rng_seed(seed)
    return -Trace_ELBO().loss(vae.model, vae.guide, *args, **kwargs)


class TestShapes:
    @every_vae
    def test_encode(self, case):
        vae, x = case.build(), case.data()
        posterior = vae.encode(x)
        assert posterior.batch_shape == (12,)
        assert posterior.event_shape == (case.num_coordinates,)
        assert posterior.mean.dtype == case.options.get("latent_dtype", torch.float32)

    @every_vae
    def test_decode(self, case):
        vae = case.build()
        for batch in [(), (3,), (2, 3)]:
            likelihood = vae.decode(vae.prior().sample(batch))
            assert likelihood.batch_shape == batch
            assert likelihood.event_shape == case.data_shape
            assert likelihood.mean.dtype == torch.float32

    @every_vae
    def test_reconstruct(self, case):
        vae, x = case.build(), case.data()
        out = vae.reconstruct(x)
        assert out.shape == x.shape
        assert not out.requires_grad
        assert torch.equal(out, vae.decode(vae.encode(x).mean).mean)

    @every_vae
    def test_generate(self, case):
        vae = case.build()
        out = vae.generate(4)
        assert out.shape == (4, *case.data_shape)
        assert not out.requires_grad
        assert not torch.equal(out[0], out[1])
        if case.likelihood == "bernoulli":
            assert ((out > 0) & (out < 1)).all()

    @pytest.mark.parametrize(("case", "parallel"), in_turns(VAES, [False, True]), ids=str)
    def test_prior_predictive(self, case, parallel):
        vae = case.build()
        samples = Predictive(vae.model, num_samples=4, parallel=parallel)(data_size=3)
        assert samples["z"].shape[0] == 4
        assert samples["z"].shape[-2:] == (3, case.num_coordinates)
        assert samples["x"].shape == (4, 3, *case.data_shape)

    def test_one_datum_is_drawn_by_default(self):
        trace = poutine.trace(VAES[0].build().model).get_trace()
        assert trace.nodes["x"]["value"].shape == (1, 6)

    @pytest.mark.parametrize("data_shape", [6, (6,), [6]])
    def test_data_shape_may_be_an_integer(self, data_shape):
        assert HyperbolicVAE(PoincareBall(1.0), 2, data_shape, hidden_dim=4).generate(2).shape == (2, 6)


class TestDistributions:
    NAMES = {"wrapped": WrappedNormal, "riemannian": RiemannianNormal}

    @pytest.mark.parametrize("case", HYPERBOLIC_VAES, ids=str)
    def test_names(self, case):
        vae, x = case.build(), case.data()
        assert type(vae.prior()) is self.NAMES[case.options.get("prior", "wrapped")]
        posterior = vae.encode(x)
        assert type(posterior) is self.NAMES[case.options.get("posterior", "wrapped")]
        diagonal = case.options.get("posterior_scale") == "diagonal"
        assert posterior.scale.shape == (12, case.latent_dim if diagonal else 1)
        assert vae.manifold.dist0(vae.prior().mean) == 0

    @pytest.mark.parametrize("case", HYPERBOLIC_VAES, ids=str)
    def test_location_goes_through_the_exponential_map(self, case):
        vae, x = case.build(), case.data()
        loc, scale = vae.encoder(x)
        posterior = vae.encode(x)
        torch.testing.assert_close(Log0(vae.manifold)(posterior.mean).float(), loc, rtol=1e-4, atol=1e-5)
        if case.options.get("posterior", "wrapped") == "wrapped":
            scale = bounded(scale, vae.manifold, case.latent_dim)
        torch.testing.assert_close(posterior.scale.float(), scale)

    def test_manifold_is_shared_with_the_decoder(self):
        shared = ManifoldModule(PoincareBall(0.7), learnable=True)
        vae = HyperbolicVAE(shared, 2, 6, hidden_dim=4)
        assert vae.latent.manifold is vae.decoder.embed.manifold is shared
        assert vae.manifold.c.item() == pytest.approx(0.7)

    def test_normal_likelihood_has_unit_variance(self):
        vae = VAES[2].build()
        assert VAES[2].likelihood == "normal"
        likelihood = vae.decode(vae.prior().sample((3,)))
        assert (likelihood.base_dist.scale == 1).all()

    def test_a_float64_model(self):
        vae = VAES[1].build().double()
        x = VAES[1].data().to(torch.float64)
        assert vae.encode(x).rsample().dtype == torch.float64
        assert math.isfinite(elbo(vae, x))


class TestScales:
    @every_vae
    def test_data_size_scales_the_loss(self, case):
        vae, x = case.build(), case.data()
        whole = elbo(vae, x)
        for factor in (1, 3, 1000):
            assert elbo(vae, x, data_size=factor * len(x)) == pytest.approx(factor * whole, rel=1e-5)

    @both
    def test_subsample(self, case):
        vae, x = case.build(), case.data()
        pyro.set_rng_seed(5)
        guide_trace = poutine.trace(vae.guide).get_trace(x, subsample_size=4)
        replayed = poutine.replay(vae.model, trace=guide_trace)
        model_trace = poutine.trace(replayed).get_trace(x, subsample_size=4)
        index = guide_trace.nodes["data"]["value"]
        assert len(index.unique()) == 4
        assert torch.equal(model_trace.nodes["x"]["value"], x[index])
        assert [model_trace.nodes[name]["scale"] for name in ("x", "z")] == [3.0, 3.0]
        assert guide_trace.nodes["z"]["scale"] == 3.0
        z = guide_trace.nodes["z"]["value"].clone()
        per_datum = vae.decode(z).log_prob(x[index]) + vae.prior().log_prob(z) - vae.encode(x[index]).log_prob(z)
        assert elbo(vae, x, subsample_size=4) == pytest.approx(3 * per_datum.sum().item(), rel=1e-5)

    @both
    def test_subsample_is_unbiased(self, case):
        vae, x = case.build(), case.data()
        with torch.no_grad():
            small = torch.tensor([elbo(vae, x, seed=s, subsample_size=3) for s in range(75)])
            whole = torch.tensor([elbo(vae, x, seed=s) for s in range(25)])
        error = (small.var() / len(small) + whole.var() / len(whole)).sqrt()
        assert abs(small.mean() - whole.mean()) < 5 * error < 0.2 * abs(whole.mean())

    BAD = {
        "both": ({"data_size": 100, "subsample_size": 4}, "subsample_size"),
        "data_size below the minibatch": ({"data_size": 5}, "data_size must be at least the 12 data.*got 5"),
    }

    @pytest.mark.parametrize("name", BAD)
    def test_bad_sizes(self, name):
        kwargs, message = self.BAD[name]
        vae, x = VAES[0].build(), VAES[0].data()
        for program in (vae.model, vae.guide):
            with pytest.raises(ValueError, match=message):
                poutine.trace(program).get_trace(x, **kwargs)

    def test_subsample_needs_data(self):
        with pytest.raises(ValueError, match="subsample_size"):
            poutine.trace(VAES[0].build().model).get_trace(subsample_size=4)

    @pytest.mark.parametrize("shape", [(12, 5), (12,), (12, 1, 6), (12, 6, 1)], ids=str)
    def test_data_of_another_shape(self, shape):
        vae = VAES[0].build()
        for program in (vae.model, vae.guide):
            with pytest.raises(ValueError, match=r"x must have shape \(N, 6\), got"):
                poutine.trace(program).get_trace(torch.zeros(shape))


class TestScalesOnSpheres:
    """An encoder may give any positive scale; a wrapped normal goes around a sphere so often only."""

    CASES = (
        ("s3", (4.0,), [2.0, 2.0, 2.0]),
        ("h1,s1,e1", (1.0, 0.25), [math.inf, 8.0, math.inf]),
        ("u1,u1,u1", (-1.0, 0.0, 1.0), [math.inf, math.inf, 4.0]),
        ("h3", (1.0,), [math.inf] * 3),
    )

    @pytest.mark.parametrize(("signature", "curvatures", "bounds"), CASES, ids=[case[0] for case in CASES])
    @pytest.mark.parametrize("size", [1, 3])
    def test_bounds(self, signature, curvatures, bounds, size):
        manifold = from_signature(signature).with_curvatures([torch.tensor(k) for k in curvatures])
        given = torch.tensor([[1e-3], [1.0], [1e5]]).expand(3, size)
        found = bounded(given, manifold, 3)
        limit = torch.tensor(bounds) if size == 3 else torch.tensor(min(bounds))
        expected = given / (1 + (given / limit).square()).sqrt()
        torch.testing.assert_close(found, expected)
        assert (found <= limit).all()

    @pytest.mark.parametrize("signature", ["s2", "u2", "e1,s1"])
    def test_a_wide_posterior_is_finite(self, signature):
        manifold = ManifoldModule(from_signature(signature, k=0.7), learnable=True)
        vae = ManifoldVAE(manifold, 2, 5, hidden_dim=4, likelihood="normal", posterior_scale="diagonal")
        with torch.no_grad():
            vae.encoder.scale.bias.fill_(1e4)
        loss = Trace_ELBO().differentiable_loss(vae.model, vae.guide, torch.randn(6, 5))
        assert loss.isfinite()
        assert all(g.isfinite().all() for g in torch.autograd.grad(loss, list(vae.parameters())))

    def test_a_learned_curvature_passes_zero(self):
        """The bound is that of a sphere on one side, and none on the other."""
        k = torch.tensor([-1e-4, 0.0, 1e-4], dtype=torch.float64, requires_grad=True)
        found = bounded(torch.full((3, 1), 2.0, dtype=torch.float64), Stereographic(k), 2)
        torch.testing.assert_close(found, torch.full_like(found, 2.0), atol=1e-4, rtol=0)
        found.sum().backward()
        assert k.grad.isfinite().all()


class TestConditioning:
    @every_vae
    @torch.no_grad()
    def test_on_the_data(self, case):
        vae, x = case.build(), case.data()
        z = vae.prior().sample((12,))
        conditioned = poutine.condition(vae.model, data={"x": x, "z": z})
        trace = poutine.trace(conditioned).get_trace(data_size=12)
        assert set(trace.observation_nodes) == {"x", "z"}
        expected = (vae.decode(z).log_prob(x) + vae.prior().log_prob(z)).sum()
        # The decoder's part is float32, whatever the dtype of the sum.
        torch.testing.assert_close(trace.log_prob_sum().float(), expected.float())

    def test_grey_levels_are_scored_by_the_cross_entropy(self):
        vae = VAES[0].build()
        z, x = vae.prior().sample((12,)), torch.rand(12, 6)
        logits = vae.decoder(z)
        expected = -nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(-1)
        torch.testing.assert_close(vae.decode(z).log_prob(x), expected)
        assert math.isfinite(elbo(vae, x))


class TestOutputBias:
    @every_vae
    def test_decoder_starts_at_the_mean(self, case):
        vae, x = case.build(), case.data(50)
        vae.init_output_bias(x)
        with torch.no_grad():
            vae.decoder.output.weight.zero_()
        # Half a count of each kind is added to grey levels.
        expected = (49 * x.mean(0) + 0.5) / 50 if case.likelihood == "bernoulli" else x.mean(0)
        same(vae.generate(2), expected.expand(2, *case.data_shape), ROUNDING[torch.float32])

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_pixels_that_never_change_stay_finite(self, value):
        vae = VAES[0].build()
        x = torch.rand(20, 6)
        x[:, 3] = value
        vae.init_output_bias(x)
        bias = vae.decoder.output.bias
        assert bias.isfinite().all()
        assert bias[3].sigmoid().item() == pytest.approx(abs(value - 0.5 / 20), rel=1e-5)
        assert math.isfinite(elbo(vae, x))

    def test_it_helps(self):
        vae, x = VAES[0].build(), (torch.rand(40, 6) < 0.1).float()
        before = elbo(vae, x)
        vae.init_output_bias(x)
        assert elbo(vae, x) > before + 10


BAD_ARGUMENTS = {
    "prior": ({"prior": "cauchy"}, r"prior must be one of \['flow', 'riemannian', 'wrapped'\], got 'cauchy'"),
    "posterior": (
        {"posterior": "cauchy"},
        r"posterior must be one of \['flow', 'riemannian', 'wrapped'\], got 'cauchy'",
    ),
    "decoder": ({"decoder": "spline"}, r"decoder must be one of .*, got 'spline'"),
    "likelihood": ({"likelihood": "cauchy"}, r"likelihood must be one of \['bernoulli', .*\], got 'cauchy'"),
    "posterior_scale": ({"posterior_scale": "full"}, r"posterior_scale must be one of .*, got 'full'"),
    "diagonal and Riemannian": (
        {"posterior_scale": "diagonal", "posterior": "riemannian"},
        r"'diagonal' needs posterior 'wrapped', got posterior 'riemannian'",
    ),
    "latent_dim 0": ({"latent_dim": 0}, r"latent_dim must be a positive integer, got 0"),
    "latent_dim 2.0": ({"latent_dim": 2.0}, r"latent_dim must be a positive integer, got 2.0"),
    "data_shape 0": ({"data_shape": 0}, "each size of data_shape must be a positive integer, got 0"),
    "data_shape 6.0": ({"data_shape": 6.0}, r"each size of data_shape must be a positive integer, got 6\.0"),
    "data_shape ()": ({"data_shape": ()}, r"data_shape must be a positive integer or a tuple of them, got \(\)"),
    "data_shape (3, 0)": ({"data_shape": (3, 0)}, "each size of data_shape must be a positive integer, got 0"),
    "prior_scale 0": ({"prior_scale": 0.0}, r"prior_scale must be a positive number, got 0.0"),
    "prior_scale -1": ({"prior_scale": -1.0}, r"prior_scale must be a positive number, got -1.0"),
    "prior_scale nan": ({"prior_scale": math.nan}, r"prior_scale must be a positive number, got nan"),
    "prior_scale inf": ({"prior_scale": math.inf}, r"prior_scale must be a positive number, got inf"),
    "prior_scale tensor": ({"prior_scale": torch.ones(())}, r"prior_scale must be a positive number, got tensor"),
    "latent_dtype": ({"latent_dtype": torch.int64}, r"latent_dtype must be float32, float64 or None, got torch.int64"),
    "latent_dim of a module": (
        {"manifold": ManifoldModule("h2"), "latent_dim": 3},
        "latent_dim must be the dimension 2 of 'h2', got 3",
    ),
    "hidden_dim 0": ({"hidden_dim": 0}, "hidden_dim must be a positive integer, got 0"),
    "hidden_dim 2.5": ({"hidden_dim": 2.5}, "hidden_dim must be a positive integer, got 2.5"),
    "hidden_dim of an encoder of one's own": (
        {"hidden_dim": -1, "encoder": nn.Identity()},
        "hidden_dim must be a positive integer, got -1",
    ),
    "num_hidden_layers": ({"num_hidden_layers": 0}, r"num_hidden_layers must be a positive integer, got 0"),
    "activation": ({"activation": "step"}, r"activation must be one of \['elu', .*\], got 'step'"),
    "dropout": ({"dropout": 1.0}, r"dropout must be at least 0 and less than 1, got 1.0"),
    "beta 0": ({"beta": 0.0}, r"beta must be a positive number or a WarmUp, got 0.0"),
    "beta True": ({"beta": True}, r"beta must be a positive number or a WarmUp, got True"),
    "covariates": ({"covariates": {"a": OneHot(2)}}, r"covariates must be a Covariates, got dict; write Covariates\("),
    "beta name": ({"beta": "linear"}, r"beta must be a positive number or a WarmUp, got 'linear'"),
    "likelihood of other data": ({"likelihood": LIKELIHOODS["poisson"]((5,))}, r"of shape \(6,\), got one for \(5,\)"),
    "manifold": ({"manifold": 1.0}, r"manifold must be a manifold, got 1.0"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(name):
    changes, message = BAD_ARGUMENTS[name]
    good = {"manifold": PoincareBall(1.0), "latent_dim": 2, "data_shape": 6, "hidden_dim": 4}
    with pytest.raises(ValueError, match=message):
        HyperbolicVAE(**(good | changes))
    shared = set(changes) <= {
        "latent_dim",
        "hidden_dim",
        "covariates",
        "data_shape",
        "likelihood",
        "prior_scale",
        "posterior_scale",
        "beta",
    }
    if shared:
        del good["manifold"]
        with pytest.raises(ValueError, match=message):
            EuclideanVAE(**(good | changes))


class TestCharts:
    """The two charts are coordinates of one space: nothing that a model computes depends on the choice."""

    @pytest.mark.parametrize("distribution", ["wrapped", "riemannian"])
    @pytest.mark.parametrize("decoder", ["gyroplane", "logmap", "mobius"])
    @pytest.mark.parametrize("c", [0.3, 1.4])
    def test_same_loss_for_the_same_noise(self, c, decoder, distribution):
        ball, hyperboloid = (
            HyperbolicVAE(
                chart(torch.tensor(c, dtype=torch.float64)),
                2,
                6,
                8,
                prior=distribution,
                posterior=distribution,
                decoder=decoder,
            ).double()
            for chart in (PoincareBall, Lorentz)
        )
        state = ball.state_dict()
        if decoder == "mobius":
            state["decoder.embed.0.bias"].normal_()
        hyperboloid.load_state_dict(state)
        x = torch.rand(10, 6, dtype=torch.float64)
        assert elbo(hyperboloid, x) == pytest.approx(elbo(ball, x), rel=1e-9)
        same(hyperboloid.reconstruct(x), ball.reconstruct(x), 1e-9)


class TestFlatLimit:
    """As c -> 0 the model is the Euclidean one in the coordinates v = 2z."""

    OPTIONS = {"latent_dim": 3, "data_shape": 6, "hidden_dim": 8, "prior_scale": 1.3}

    def twins(self, c, posterior_scale="isotropic", distribution="wrapped"):
        flat = EuclideanVAE(**self.OPTIONS, posterior_scale=posterior_scale).double()
        ball = PoincareBall(torch.tensor(c, dtype=torch.float64))
        curved = HyperbolicVAE(
            ball, **self.OPTIONS, posterior_scale=posterior_scale, prior=distribution, posterior=distribution
        ).double()
        curved.encoder.load_state_dict(flat.encoder.state_dict())
        weight, bias = flat.decoder.network[0].weight, flat.decoder.network[0].bias
        with torch.no_grad():
            # A location mu of the ball has v = 2 mu.
            curved.encoder.loc.weight /= 2
            curved.encoder.loc.bias /= 2
            # 4<a, z - p> = <w, v> + b
            planes = curved.decoder.embed
            planes.normal.copy_(weight / 2)
            planes.offset.copy_(-bias[:, None] * weight / (2 * weight.square().sum(-1, keepdim=True)))
        curved.decoder.output.load_state_dict(flat.decoder.output.state_dict())
        return flat, curved

    @pytest.mark.parametrize("posterior_scale", ["isotropic", "diagonal"])
    @pytest.mark.parametrize(("c", "tolerance"), [(0.0, 1e-12), (1e-10, 1e-8), (1e-6, 1e-4)])
    def test_same_loss_for_the_same_noise(self, c, tolerance, posterior_scale):
        flat, curved = self.twins(c, posterior_scale)
        x = torch.rand(10, 6, dtype=torch.float64)
        assert elbo(curved, x) == pytest.approx(elbo(flat, x), rel=tolerance)

    @pytest.mark.parametrize("distribution", ["wrapped", "riemannian"])
    @pytest.mark.parametrize(("c", "tolerance"), [(0.0, 1e-10), (1e-10, 1e-8), (1e-6, 1e-4)])
    def test_same_densities_at_the_same_point(self, c, tolerance, distribution):
        flat, curved = self.twins(c, distribution=distribution)
        x = torch.rand(10, 6, dtype=torch.float64)
        z = curved.encode(x).sample()
        same(curved.prior().log_prob(z.clone()), flat.prior().log_prob(2 * z), tolerance)
        same(curved.encode(x).log_prob(z.clone()), flat.encode(x).log_prob(2 * z), tolerance)
        same(curved.decode(z).log_prob(x), flat.decode(2 * z).log_prob(x), tolerance)

    def test_curvature_does_make_a_difference(self):
        flat, curved = self.twins(1.0)
        x = torch.rand(10, 6, dtype=torch.float64)
        assert elbo(curved, x) != pytest.approx(elbo(flat, x), rel=1e-2)


class TestBound:
    """A bound is one only while samples and density agree: then the KL term is a divergence, above 0."""

    def kl(self, vae, x, num_samples):
        """KL(q(z | x) || p(z)) averaged over the data, and its standard error."""
        with torch.no_grad():
            posterior = vae.encode(x)
            # Densities at copies of the samples: what any other program would compute from these points.
            z = posterior.sample((num_samples,)).clone()
            terms = (posterior.log_prob(z) - vae.prior().log_prob(z)).mean(-1)
        return terms.mean().item(), terms.std().item() / math.sqrt(num_samples)

    def train(self, distribution, num_steps, learning_rate):
        data = branching_diffusion(seed=1)
        vae = HyperbolicVAE(
            PoincareBall(1.0), 2, 50, 100, prior=distribution, posterior=distribution, likelihood="normal"
        )
        svi = SVI(vae.model, vae.guide, Adam({"lr": learning_rate}), Trace_ELBO())
        kls, losses = [], []
        for step in range(num_steps):
            batch = data.train[torch.randint(len(data.train), (64,))]
            losses.append(svi.step(batch) / 64)
            if (step + 1) % (num_steps // 5) == 0:
                kls.append(self.kl(vae, data.train, 40))
        return vae, data, kls, losses

    def check(self, distribution, num_steps, learning_rate):
        _, _, kls, losses = self.train(distribution, num_steps, learning_rate)
        assert all(math.isfinite(loss) for loss in losses)
        assert losses[0] > sum(losses[-10:]) / 10 + 3
        for mean, error in kls:
            assert mean > 5 * error > 0
        # Trained to where the latents say something: a KL near 0 would be above 0 for nothing.
        assert kls[-1][0] > 1.0

    @pytest.mark.slow
    def test_divergence_stays_positive(self):
        self.check("riemannian", 100, 1e-2)

    @pytest.mark.slow
    @pytest.mark.parametrize("distribution", ["wrapped", "riemannian"])
    def test_divergence_stays_positive_in_a_long_training(self, distribution):
        self.check(distribution, 7000, 1e-3)


class TestGreyLevels:
    @pytest.mark.parametrize("value", [-0.1, 1.5, 255.0])
    def test_bernoulli_refuses_what_is_no_grey_level(self, value: float) -> None:
        vae = EuclideanVAE(2, 5, hidden_dim=4)
        x = torch.rand(3, 5)
        x[1, 2] = value
        with pytest.raises(ValueError, match=r"x must lie in \[0, 1\]"):
            Trace_ELBO().loss(vae.model, vae.guide, x)

    def test_normal_takes_any_number(self) -> None:
        vae = EuclideanVAE(2, 5, hidden_dim=4, likelihood="normal")
        assert math.isfinite(Trace_ELBO().loss(vae.model, vae.guide, 255 * torch.rand(3, 5)))
