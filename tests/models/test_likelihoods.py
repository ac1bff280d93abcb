"""Likelihoods: their densities, their data, and where a decoder begins."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pytest
import scipy.stats
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.models import LIKELIHOODS, HyperbolicVAE
from tests.helpers import same
from tests.models.cases import DATA, VAECase

SHAPE = (2, 3)
NAMES = sorted(LIKELIHOODS)
COUNTS = ["negative_binomial", "poisson", "zero_inflated_negative_binomial"]


@pytest.fixture(autouse=True)
def _validated():
    with pyro.validation_enabled(True):
        yield


def build(name: str) -> Any:
    """A likelihood with parameters that are not those to begin with, in double precision."""
    likelihood = LIKELIHOODS[name](SHAPE).double()
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter.copy_(torch.linspace(-0.5, 0.7, max(1, parameter.numel())).reshape(parameter.shape))
    return likelihood


def data(name: str, size: int = 40) -> Tensor:
    return VAECase(data_shape=SHAPE, options={"likelihood": name}).data(size).double()


def reference(name: str, likelihood: Any, output: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Log-densities by scipy, feature by feature."""
    scale = likelihood.log_scale.detach().exp().numpy() if list(likelihood.parameters()) and "_" in name else 1.0
    if name.startswith("normal"):
        return scipy.stats.norm(output, scale).logpdf(x)
    if name.startswith("laplace"):
        return scipy.stats.laplace(output, scale).logpdf(x)
    if name == "poisson":
        return scipy.stats.poisson(np.exp(output)).logpmf(x)
    p = 1 / (1 + np.exp(-output))
    if name == "bernoulli":
        return x * np.log(p) + (1 - x) * np.log(1 - p)
    if name == "continuous_bernoulli":
        normaliser = 2 * np.arctanh(1 - 2 * p) / (1 - 2 * p)
        return np.log(normaliser) + x * np.log(p) + (1 - x) * np.log(1 - p)
    return scipy.stats.multinomial(1, np.exp(output) / np.exp(output).sum(-1, keepdims=True)).logpmf(x)


def negative_binomial(likelihood: Any, log_mean: np.ndarray, x: np.ndarray) -> np.ndarray:
    """By mean m and variance m + m^2 / r."""
    r = likelihood.log_inverse_dispersion.detach().exp().numpy()
    mean = np.exp(log_mean)
    variance = mean + mean**2 / r
    return scipy.stats.nbinom(mean**2 / (variance - mean), mean / variance).logpmf(x)


def test_every_likelihood_has_data() -> None:
    assert sorted(DATA) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_density(name: str) -> None:
    likelihood, x = build(name), data(name)
    torch.manual_seed(0)
    output = torch.randn(40, *likelihood.output_shape, dtype=torch.float64)
    distribution = likelihood(output)
    distribution = distribution.to_event(len(distribution.batch_shape) - 1)
    sizes = 0.5 + torch.rand(40, 1, 1, dtype=torch.float64)
    if name == "negative_binomial":
        expected = negative_binomial(likelihood, output.numpy(), x.numpy())
        scaled = negative_binomial(likelihood, (output + sizes.log()).numpy(), x.numpy())
    elif name == "zero_inflated_negative_binomial":
        log_mean, gate = output.numpy().transpose(1, 0, 2, 3)
        closed = 1 / (1 + np.exp(-gate))
        parts = [negative_binomial(likelihood, log_mean + np.log(s), x.numpy()) for s in (1.0, sizes.numpy())]
        expected, scaled = (np.log((1 - closed) * np.exp(p) + closed * (x.numpy() == 0)) for p in parts)
    else:
        expected = reference(name, likelihood, output.numpy(), x.numpy())
        scaled = scipy.stats.poisson((sizes * output.exp()).numpy()).logpmf(x) if name == "poisson" else None
    same(distribution.log_prob(x), expected.reshape(40, -1).sum(-1), 1e-6)
    assert likelihood.takes_size_factors == (scaled is not None)
    if scaled is not None:
        distribution = likelihood(output, sizes)
        same(distribution.to_event(2).log_prob(x), scaled.reshape(40, -1).sum(-1), 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_decoder_begins_at_the_mean(name: str) -> None:
    x = data(name).float()
    vae = HyperbolicVAE(PoincareBall(1.0), 2, SHAPE, hidden_dim=4, likelihood=name)
    vae.init_output_bias(x)
    with torch.no_grad():
        vae.decoder.output.weight.zero_()
    mean = vae.generate(1)[0]
    # That of the continuous Bernoulli is no logistic function of the logit, but between it and 1/2.
    tolerance = 0.15 if name == "continuous_bernoulli" else 0.03
    same(mean, x.mean(0), tolerance, scale=1.0)


def evaluate(vae: Any, x: Tensor) -> float:
    """The loss with the same noise at every call."""
    pyro.set_rng_seed(5)
    return Trace_ELBO(num_particles=30, vectorize_particles=True).loss(vae.model, vae.guide, x)


# What those that differ in more than a formula have in common with the others.
QUICK = {"bernoulli", "categorical", "normal_feature", "zero_inflated_negative_binomial"}


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_training_lowers_the_loss(name: str) -> None:
    case = VAECase(data_shape=SHAPE, options={"likelihood": name})
    pyro.clear_param_store()
    vae, x = case.build(), case.data()
    before = evaluate(vae, x)
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    losses = [svi.step(x) for _ in range(15)]
    assert all(math.isfinite(loss) for loss in losses)
    assert evaluate(vae, x) < before - 2
    start = case.build()
    for key, parameter in vae.likelihood.named_parameters():
        assert not torch.equal(parameter, dict(start.likelihood.named_parameters())[key])
    assert vae.reconstruct(x).shape == vae.decode(vae.prior().sample((12,))).sample().shape == x.shape


WRONG = {
    "negative count": ("poisson", -1.0, r"x must hold counts, whole numbers from 0 on, got -1"),
    "fraction": (
        "negative_binomial",
        0.5,
        r"x must hold counts, whole numbers from 0 on, got 0.5; give the raw counts",
    ),
    "no number": ("zero_inflated_negative_binomial", math.nan, r"x must hold counts, .* got nan"),
    "infinite count": ("negative_binomial", math.inf, r"x must hold counts, .* got inf"),
    "byte": ("continuous_bernoulli", 255.0, r"x must lie in \[0, 1\].*to 255; scale grey levels"),
    "level": ("bernoulli", -0.1, r"x must lie in \[0, 1\].*from -0.1"),
    "two categories": ("categorical", 1.0, r"x must be one-hot in its last dimension"),
    "missing value": ("normal", math.nan, r"x must hold finite numbers"),
    "infinite value": ("laplace_feature", math.inf, r"x must hold finite numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data(name: str) -> None:
    likelihood, value, message = WRONG[name]
    vae = HyperbolicVAE(PoincareBall(1.0), 2, SHAPE, hidden_dim=4, likelihood=likelihood)
    x = data(likelihood, 12).float()
    vae.model(x)
    x[3, 0] = value
    with pytest.raises(ValueError, match=message):
        vae.model(x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.bool], ids=str)
def test_whole_numbers_may_be_integers(dtype: torch.dtype) -> None:
    vae = HyperbolicVAE(PoincareBall(1.0), 2, SHAPE, hidden_dim=4, likelihood="poisson")
    x = (data("poisson", 12) % 2).float()
    losses = []
    for values in (x, x.to(dtype)):
        pyro.set_rng_seed(3)
        losses.append(Trace_ELBO().loss(vae.model, vae.guide, values))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", COUNTS)
def test_encoder_reads_logarithms_of_counts(name: str) -> None:
    x, sizes = data(name), 0.5 + torch.rand(40, 1, 1)
    likelihood = build(name)
    same(likelihood.encoder_input(x), torch.log1p(x), 1e-12)
    same(likelihood.encoder_input(x, sizes), torch.log1p(x / sizes), 1e-12)


def test_no_output_of_a_decoder_overflows() -> None:
    output = torch.tensor([-300.0, 0.0, 300.0]).expand(*SHAPE).clone().requires_grad_()
    for name, value in (("negative_binomial", output), ("zero_inflated_negative_binomial", torch.stack([output] * 2))):
        log_prob = LIKELIHOODS[name](SHAPE)(value).log_prob(torch.tensor(5.0))
        assert log_prob.isfinite().all()
        log_prob.sum().backward()
    assert output.grad.isfinite().all()


def test_function_gets_size_factors_where_there_are_some() -> None:
    seen = []

    def rate(output: Tensor, size_factors: Tensor | None = None) -> Any:
        seen.append(size_factors)
        return pyro.distributions.Poisson(output.exp() * (1 if size_factors is None else size_factors))

    vae = HyperbolicVAE(PoincareBall(1.0), 2, SHAPE, hidden_dim=4, likelihood=rate)
    x = data("poisson", 12).float()
    vae.model(x)
    assert seen[-1] is None
    vae.model(x, size_factors=torch.full((12,), 2.0))
    assert seen[-1].shape == (12, 1, 1)
    with pytest.raises(ValueError, match="a likelihood that is a function does not say"):
        vae.init_output_bias(x)


def test_function_must_explain_the_data() -> None:
    vae = HyperbolicVAE(
        PoincareBall(1.0), 2, SHAPE, hidden_dim=4, likelihood=lambda out: pyro.distributions.Normal(out.sum(-1), 1.0)
    )
    with pytest.raises(ValueError, match=r"likelihood must give .* data of shape \(2, 3\), got \(2,\)"):
        vae.model(torch.zeros(5, *SHAPE))
