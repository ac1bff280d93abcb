"""Auto-encoders of parts: covariates, size factors, the weight of the divergence, parts of the user's."""

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO
from torch import nn

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import log_marginal_likelihood
from pyro_hyperbolic.models import CountVAE, EuclideanVAE, HyperbolicVAE, WarmUp
from pyro_hyperbolic.nn import DECODERS, Covariates, GyroplaneLinear, OneHot
from tests.helpers import same
from tests.models.cases import COMPOSED

CASE, OWN_PARTS, COUNTS = COMPOSED


@pytest.fixture(autouse=True)
def _validated():
    with pyro.validation_enabled(True):
        yield


def loss(net, *args, **kwargs):
    pyro.set_rng_seed(5)
    return Trace_ELBO().loss(net.model, net.guide, *args, **kwargs)


# Weighted sums of the parameters that seed 0 gave when there was one hidden layer and no other option.
INITIAL = {
    "gyroplane": {
        "encoder.trunk.0.weight": -43.51428,
        "decoder.embed.normal": -24.93899,
        "decoder.network.1.bias": 0.45008,
    },
    "logmap": {"encoder.scale.bias": 0.26883, "decoder.network.0.weight": -6.94367, "decoder.network.2.bias": -2.15423},
    "mlp": {"encoder.loc.weight": 2.96972, "decoder.network.0.bias": -8.16091, "decoder.network.2.weight": -23.00275},
    "mobius": {"encoder.loc.bias": 0.72482, "decoder.embed.0.weight": -6.94367, "decoder.network.1.weight": 2.9613},
}


@pytest.mark.parametrize("decoder", DECODERS)
def test_names_and_initial_values_are_those_of_old_checkpoints(decoder):
    torch.manual_seed(0)
    vae = HyperbolicVAE(PoincareBall(1.0), 2, (2, 3), hidden_dim=8, decoder=decoder)
    state = vae.state_dict()
    for name, expected in INITIAL[decoder].items():
        value = state[name].double().flatten()
        assert (value * torch.arange(1, len(value) + 1)).sum().item() == pytest.approx(expected, abs=1e-4)
    assert {name for name in state if not name.startswith(("encoder", "decoder"))} == {
        "latent.log_scale",
        "latent.manifold.fixed",
    }


class TestCovariates:
    def test_encoder_and_decoder_read_them(self):
        net, x, extra = CASE.build(), CASE.data(), CASE.kwargs
        other = {**extra, "covariates": {**extra["covariates"], "batch": 1 - extra["covariates"]["batch"]}}
        assert not torch.allclose(net.encode(x, **extra).mean, net.encode(x, **other).mean)
        z = net.encode(x, **extra).mean
        assert not torch.allclose(net.decode(z, **extra).mean, net.decode(z, **other).mean)
        same(net.reconstruct(x, **extra), net.decode(z, **extra).mean.detach(), 1e-6)

    @pytest.mark.parametrize("decoder", DECODERS)
    def test_decoder_mixes_them_with_the_latent(self, decoder):
        """What a covariate changes depends on the point: it comes before the activation."""
        torch.manual_seed(0)
        net = HyperbolicVAE(
            PoincareBall(1.0), 2, 6, 30, decoder=decoder, likelihood="normal", covariates=Covariates(batch=OneHot(2))
        )
        z = net.prior().sample((5,))
        first, second = (net.decode(z, covariates={"batch": torch.tensor(i)}).mean for i in (0, 1))
        effect = first - second
        assert (effect - effect[0]).abs().max() > 0.01

    def test_one_value_for_all_points(self):
        net, extra = CASE.build(), CASE.kwargs["covariates"]
        z = net.prior().sample((3, 12))
        given = {"batch": torch.tensor(1), "donor": torch.tensor(2), "age": torch.tensor(0.3)}
        distribution = net.decode(z, covariates=given)
        assert distribution.batch_shape == (3, 12)
        rows = {name: value.expand(12) for name, value in given.items()}
        same(distribution.mean, net.decode(z, covariates=rows).mean, 1e-5)
        assert extra.keys() == given.keys()

    def test_generation_under_conditions(self):
        net, extra = CASE.build(), CASE.kwargs
        assert net.generate(12, **extra).shape == (12, 6)
        samples = Predictive(net.model, num_samples=3)(**extra)
        assert samples["x"].shape == (3, 12, 6)
        with pytest.raises(
            ValueError, match=r"covariates\['batch'\] must have one value for each of the 5 data to draw"
        ):
            net.model(data_size=5, **extra)

    def test_subsampling_takes_the_same_rows(self):
        net, x, extra = CASE.build(), CASE.data(), CASE.kwargs
        trace = poutine.trace(net.guide).get_trace(x, subsample_size=4, **extra)
        rows = trace.nodes["data"]["value"]
        z = trace.nodes["z"]["value"]
        covariates = {name: value[rows] for name, value in extra["covariates"].items()}
        distribution = net.encode(x[rows], covariates=covariates, size_factors=extra["size_factors"][rows])
        same(trace.nodes["z"]["fn"].log_prob(z), distribution.log_prob(z), 1e-5)
        replayed = poutine.trace(poutine.replay(net.model, trace=trace)).get_trace(x, subsample_size=4, **extra)
        likelihood = net.decode(z, covariates=covariates, size_factors=extra["size_factors"][rows])
        site = replayed.nodes["x"]
        same(site["fn"].log_prob(site["value"]), likelihood.log_prob(x[rows]), 1e-5)

    def test_evidence_takes_the_same_rows_of_all(self):
        net, x, extra = CASE.build(), CASE.data(), CASE.kwargs
        seen = []

        def model(x, **kwargs):
            seen.append({"x": x, **kwargs})
            return net.model(x, **kwargs)

        result = log_marginal_likelihood(model, net.guide, x, num_samples=4, chunk=20, **extra, data_size=100)
        assert result.shape == (12,)
        assert result.isfinite().all()
        assert [len(part["x"]) for part in seen] == [5, 5, 2]
        assert all(part["data_size"] == 100 for part in seen)
        for name in ("x", "size_factors"):
            assert torch.equal(torch.cat([part[name] for part in seen]), {"x": x, **extra}[name])
        for name, values in extra["covariates"].items():
            assert torch.equal(torch.cat([part["covariates"][name] for part in seen]), values)

    ERRORS = {
        "none": ({"covariates": None}, r"covariates must be those .* \['age', 'batch', 'donor'\], got None"),
        "length": (
            {
                "covariates": {
                    "batch": torch.zeros(5, dtype=torch.int64),
                    "donor": torch.tensor(0),
                    "age": torch.tensor(0.0),
                }
            },
            r"covariates\['batch'\] must have one value for each of the 12 data of x, got 5",
        ),
        "sizes": ({"size_factors": torch.ones(3)}, r"size_factors must have one value for each of the 12 .* got 3"),
        "zero size": ({"size_factors": torch.zeros(12)}, r"size_factors must be positive numbers, got 0"),
        "infinite size": ({"size_factors": torch.full((12,), math.inf)}, r"size_factors must be positive .* got inf"),
    }

    @pytest.mark.parametrize("name", ERRORS)
    def test_errors(self, name):
        changes, message = self.ERRORS[name]
        net = CASE.build()
        for program in (net.model, net.guide):
            with pytest.raises(ValueError, match=message):
                program(CASE.data(), **CASE.kwargs | changes)

    def test_errors_of_the_parts(self):
        net, x, extra = CASE.build(), CASE.data(), CASE.kwargs
        z = net.encode(x, **extra).mean
        for part, value in ((net.encode, x[:5]), (net.decode, z[:5])):
            with pytest.raises(
                ValueError, match=r"covariates must have one value for each datum.* \(5,\), got \(12,\)"
            ):
                part(value, covariates=extra["covariates"])
            rows = {name: values[:5] for name, values in extra["covariates"].items()}
            with pytest.raises(ValueError, match=r"size_factors must have one value for each datum.* got \(12,\)"):
                part(value, covariates=rows, size_factors=extra["size_factors"])

    def test_one_value_for_all_data(self):
        net, x = CASE.build(), CASE.data()
        single = {"batch": torch.tensor(1), "donor": torch.tensor(2), "age": torch.tensor(0.3)}
        rows = {name: value.expand(12) for name, value in single.items()}
        same(net.encode(x, covariates=single).mean, net.encode(x, covariates=rows).mean, 1e-6)
        assert loss(net, x, covariates=single) == pytest.approx(loss(net, x, covariates=rows), rel=1e-5)

    def test_not_expected(self):
        vae = EuclideanVAE(2, 6, hidden_dim=4)
        with pytest.raises(ValueError, match=r"covariates must be those that the model was built with, \[\], got"):
            vae.encode(torch.rand(3, 6), covariates={"batch": torch.zeros(3)})
        with pytest.raises(ValueError, match="size_factors scale the means of counts; this likelihood has none"):
            vae.model(torch.rand(3, 6), size_factors=torch.ones(3))


class TestCounts:
    def test_size_factors_are_the_totals(self):
        net, x, extra = COUNTS.build(), COUNTS.data(), COUNTS.kwargs
        sizes = x.sum(-1) / 20
        assert loss(net, x, **extra) == loss(net, x, size_factors=sizes, **extra)
        assert loss(net, x, **extra) != loss(net, x, size_factors=2 * sizes, **extra)
        same(net.encode(x, **extra).mean, net.encode(x, size_factors=sizes, **extra).mean, 1e-6)
        z = net.encode(x, **extra).mean
        normalised = net.decode(z, **extra).mean
        same(net.reconstruct(x, **extra), (normalised * sizes.unsqueeze(-1)).detach(), 1e-4, scale=x.max())

    def test_decoder_begins_at_the_mean_rates(self):
        net, x = COUNTS.build(), COUNTS.data()
        net.init_output_bias(x)
        with torch.no_grad():
            net.decoder.output.weight.zero_()
        rates = (20 * x / x.sum(-1, keepdim=True)).mean(0)
        same(net.generate(1, covariates={"batch": torch.tensor(0)})[0], rates.clamp(min=0.5 / len(x)), 1e-4)

    @pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
    def test_sparse_counts(self):
        with pytest.raises(ValueError, match=r"x must be dense, got layout torch.sparse_csr; infer.Minibatches makes"):
            COUNTS.build().model(COUNTS.data().to_sparse_csr(), **COUNTS.kwargs)

    def test_rows_without_counts(self):
        net, x, extra = COUNTS.build(), COUNTS.data(), COUNTS.kwargs
        x[[4, 7]] = 0
        for program in (net.model, net.guide):
            with pytest.raises(ValueError, match="x has no counts in 2 rows, the first of which is 4; leave these out"):
                program(x, **extra)
        assert math.isfinite(loss(net, x, size_factors=torch.ones(len(x)), **extra))
        for program in (net.model, net.guide):
            with pytest.raises(ValueError, match="x must hold counts, whole numbers from 0 on, got -3"):
                program(torch.where(x == 0, -3.0, x), **extra)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"target_sum": 0.0}, "target_sum must be a positive number, got 0.0"),
            ({"target_sum": True}, "target_sum must be a positive number, got True"),
            ({"batches": 2, "covariates": Covariates(sex=OneHot(2))}, "batches is the covariate 'batch'"),
            ({"likelihood": "normal"}, "size_factors scale the means of counts"),
        ],
    )
    def test_errors(self, options, message):
        with pytest.raises(ValueError, match=message):
            CountVAE(PoincareBall(1.0), 2, 6, **options).model(torch.ones(3, 6))


class TestWeight:
    def test_schedule(self):
        net = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=4, beta=WarmUp(4, end=0.8))
        assert net.beta.item() == pytest.approx(0.2)
        weights = []
        for step in range(6):
            net.warm_up(step)
            weights.append(net.beta.item())
        assert weights == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
        assert "beta" in net.state_dict()

    def test_elbo_is_linear_in_it(self):
        x = torch.rand(12, 6)
        losses = []
        for beta in (None, 1.0, 0.5, 2.0):
            torch.manual_seed(0)
            losses.append(loss(HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=4, beta=beta), x))
        assert losses[0] == losses[1]
        assert losses[3] - losses[1] == pytest.approx(2 * (losses[1] - losses[2]), rel=1e-4)
        assert losses[1] != losses[2]

    def test_evidence_does_not_know_it(self):
        x = torch.rand(12, 6)
        estimates = []
        for beta in (None, 0.1):
            torch.manual_seed(0)
            net = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=4, beta=beta)
            estimates.append(log_marginal_likelihood(net.model, net.guide, x, num_samples=10))
        same(*estimates, 1e-6)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: WarmUp(0), "num_steps must be a positive integer, got 0"),
            (lambda: WarmUp(5, end=0.0), "start must be at least 0 and end positive, got 0.0 and 0.0"),
            (lambda: EuclideanVAE(2, 6, beta=0.5).warm_up(3), "this model has no schedule; give it one"),
        ],
    )
    def test_errors(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()


class TestNetworks:
    def test_depth_activation_and_dropout(self):
        options = {"num_hidden_layers": 3, "activation": "silu", "dropout": 0.2}
        net = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=4, **options)
        for part, linear in ((net.encoder.trunk, 3), (net.decoder.network, 3)):
            kinds = [type(layer) for layer in part]
            assert [kinds.count(kind) for kind in (nn.Linear, nn.SiLU, nn.Dropout)] == [linear, 3, 3]

    def test_dropout_ends_with_training(self):
        net, x = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=40, dropout=0.5), torch.rand(5, 6)
        assert not torch.equal(net.encode(x).mean, net.encode(x).mean)
        net.eval()
        assert torch.equal(net.encode(x).mean, net.encode(x).mean)

    def test_an_activation_may_be_a_module(self):
        net = EuclideanVAE(2, 6, hidden_dim=4, activation=lambda: nn.Hardtanh(-2.0, 2.0), decoder="logmap")
        assert isinstance(net.encoder.trunk[1], nn.Hardtanh)
        assert net.generate(2).shape == (2, 6)


class TestOwnParts:
    @pytest.mark.parametrize("batch", [(), (7,), (2, 7), (2, 1, 7)], ids=str)
    def test_decoder_sees_one_batch(self, batch):
        net = OWN_PARTS.build()
        z = net.prior().sample(batch)
        distribution = net.decode(z)
        assert distribution.batch_shape == batch
        assert distribution.event_shape == (1, 4, 4)
        if len(batch) == 2:
            same(distribution.mean[1], net.decode(z[1]).mean, 1e-5)

    def test_conditions_come_second(self):
        class Both(nn.Module):
            def __init__(self, first, rest):
                super().__init__()
                self.first, self.rest = first, rest

            def forward(self, value, conditions):
                assert conditions.shape == (*value.shape[:-1], 2)
                return self.rest(torch.cat([self.first(value), conditions], -1))

        class Head(nn.Module):
            def forward(self, hidden):
                return hidden[..., :2], hidden[..., 2:].exp()

        ball = PoincareBall(1.0)
        net = HyperbolicVAE(
            ball,
            2,
            6,
            encoder=Both(nn.Identity(), nn.Sequential(nn.Linear(8, 3), Head())),
            decoder=Both(GyroplaneLinear(2, 5, ball), nn.Linear(7, 6)),
            covariates=Covariates(batch=OneHot(2)),
        )
        x, covariates = torch.rand(12, 6), {"batch": torch.arange(12) % 2}
        elbo = Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1)
        assert math.isfinite(elbo.loss(net.model, net.guide, x, covariates=covariates))
        assert net.decode(net.prior().sample((4,)), covariates={"batch": torch.tensor(1)}).batch_shape == (4,)

    WRONG = {
        "no pair": ({"encoder": nn.Linear(6, 3)}, r"encoder must return .* \[\(5, 2\), \(5, 1\)\], got Tensor"),
        "number of data": (
            {"decoder": nn.Flatten(0)},
            r"decoder must return one output for each of 5 latents, got \(10,\)",
        ),
        "shape": ({"decoder": nn.Linear(2, 7)}, r"likelihood must give .* shape \(6,\), got \(7,\)"),
    }

    @pytest.mark.parametrize("name", WRONG)
    def test_errors(self, name):
        changes, message = self.WRONG[name]
        net = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=4, **changes)
        with pytest.raises(ValueError, match=message):
            loss(net, torch.rand(5, 6))

    def test_mean_of_the_data_needs_a_decoder_by_name(self):
        with pytest.raises(ValueError, match="init_output_bias needs a decoder by name"):
            OWN_PARTS.build().init_output_bias(OWN_PARTS.data())
