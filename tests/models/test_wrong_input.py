"""Data and latents that a model cannot take."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.infer import FastSVI
from pyro_hyperbolic.models import CountVAE, EuclideanVAE, HyperbolicVAE, HyperbolicVGAE, ManifoldVAE
from tests.models.cases import VAES, VGAES


def test_data_of_another_precision():
    vae, x = VAES[0].build(), VAES[0].data()
    svi = FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    message = r"x must be torch.float32 .* got torch.float64; pass x.float\(\), or convert the model with .double\(\)"
    for program in (vae.encode, vae.guide, vae.reconstruct, svi.step):
        with pytest.raises(ValueError, match=message):
            program(x.double())
    with pytest.raises(ValueError, match=r"got torch.float32; pass x.double\(\), or convert the model with .float"):
        VAES[0].build().double().guide(x.float())
    counts = CountVAE(PoincareBall(1.0), 2, 6, hidden_dim=4)
    with pytest.raises(ValueError, match=r"size_factors must be torch.float32 .* pass size_factors.float\(\)"):
        counts.guide(torch.ones(3, 6), size_factors=torch.ones(3, dtype=torch.float64))


def test_data_that_are_no_tensor():
    vae, x = VAES[0].build(), VAES[0].data().numpy()
    for program in (vae.model, vae.guide, vae.encode, vae.reconstruct, vae.init_output_bias):
        with pytest.raises(ValueError, match=r"x must be a tensor, got ndarray; .*as_tensor\(.*dtype=torch.float32"):
            program(x)
    counts = CountVAE(PoincareBall(1.0), 2, 6, hidden_dim=4, batches=2)
    ones, batch = torch.ones(3, 6), torch.tensor([0, 1, 0])
    for extra in (
        {"covariates": {"batch": batch.numpy()}},
        {"covariates": {"batch": batch}, "size_factors": np.ones(3)},
    ):
        with pytest.raises(ValueError, match=r"(covariates\['batch'\]|size_factors) must be a tensor, got ndarray"):
            counts.model(ones, **extra)


def test_data_of_another_shape():
    for size, bad, got in [
        (6, torch.zeros(4, 5), "4, 5"),
        ((2, 3), torch.zeros(4, 6), "4, 6"),
        ((2, 3), torch.zeros(3), r"3,"),
    ]:
        vae = HyperbolicVAE(PoincareBall(1.0), 2, size, hidden_dim=4)
        for program in (vae.model, vae.guide, vae.encode, vae.reconstruct, vae.init_output_bias):
            with pytest.raises(ValueError, match=rf"x must have shape \(N, (6|2, 3)\), got \({got}\)"):
                program(bad)
    with pytest.raises(ValueError, match=r"x must have shape \(N, 2, 3\), got \(2, 3\)"):
        vae.init_output_bias(torch.zeros(2, 3))
    assert vae.encode(torch.zeros(2, 3)).batch_shape == ()
    assert vae.encode(torch.zeros(5, 4, 2, 3)).batch_shape == (5, 4)
    # Sizes can be read where values cannot.
    assert torch.func.vmap(lambda x: vae.encode(x).mean)(torch.zeros(5, 4, 2, 3)).shape == (5, 4, 2)
    with pytest.raises(ValueError, match=r"x must have shape \(N, 2, 3\), got \(4, 3, 2\)"):
        torch.func.vmap(lambda x: vae.encode(x).mean)(torch.zeros(5, 4, 3, 2))


NUMBERS = {
    "negative": (lambda vae, x: vae.generate(-1), "n must be an integer of at least 0, got -1"),
    "text": (lambda vae, x: vae.generate("a"), "n must be an integer of at least 0, got 'a'"),
    "subsample": (
        lambda vae, x: vae.model(x, subsample_size=100),
        "subsample_size must be an integer from 1 to 12, got 100",
    ),
    "a space for flat latents": (
        lambda vae, x: EuclideanVAE(2, 4, manifold=PoincareBall(1.0)),
        r"EuclideanVAE takes no manifold, got PoincareBall\(c=1.0\); use ManifoldVAE\(manifold, latent_dim",
    ),
    "a sphere as hyperbolic space": (
        lambda vae, x: HyperbolicVAE("s2", 2, 4),
        r"manifold of HyperbolicVAE must be a chart of hyperbolic space, .* got Sphere\(c=1.0\); use ManifoldVAE,",
    ),
    "a product for a graph": (
        lambda vae, x: HyperbolicVGAE("h2,h2", 3, torch.tensor([[0, 1]]), 4),
        r"manifold of HyperbolicVGAE must be .*; use ManifoldVGAE, which takes every space",
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_other_arguments(name):
    call, message = NUMBERS[name]
    with pytest.raises(ValueError, match=message):
        call(VAES[0].build(), VAES[0].data())


@pytest.mark.parametrize("manifold", [PoincareBall(1.0), Lorentz(1.0), "e1,p1"], ids=str)
@pytest.mark.parametrize("decoder", ["gyroplane", "logmap", "mlp"])
def test_latents_of_another_size(manifold, decoder):
    vae = ManifoldVAE(manifold, 2, 6, hidden_dim=4, decoder=decoder)
    size = 2 + (vae.manifold == Lorentz(1.0))
    with pytest.raises(ValueError, match=rf"z must have shape \(\.\.\., {size}\), .* got \(3, 4\)"):
        vae.decode(torch.zeros(3, 4))


@pytest.mark.parametrize("z", [torch.ones(3, 2), torch.full((3, 2), math.nan)], ids=["outside", "nan"])
def test_latents_outside_of_the_space(z):
    vae = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=4)
    z[0] = 0.1
    with pytest.raises(ValueError, match=r"z must hold points of PoincareBall\(c=1.0\), got 2 that are none; take"):
        vae.decode(z)
    with pyro.validation_enabled(False):
        assert vae.decode(z).mean.isnan().any(-1).tolist() == [False, True, True]


# Of the last one the scale of the prior goes first.
@pytest.mark.parametrize(("case", "rate"), [(VAES[0], 1e30), (VGAES[0], 1e30), (VAES[-1], 1e30), (VAES[-1], 1e3)])
def test_a_training_that_diverges_says_what_to_do(case, rate):
    net = case.build()
    svi = SVI(net.model, net.guide, Adam({"lr": rate}), Trace_ELBO())

    def train():
        for _ in range(20):
            svi.step(*case.args)

    with pytest.raises(ValueError, match="it has diverged: lower the learning rate, or clip gradients"):
        train()


def test_a_decoder_that_has_diverged():
    vae = VAES[0].build()
    with torch.no_grad():
        vae.decoder.output.bias.fill_(math.nan)
    with pytest.raises(
        ValueError, match=r"decoder must give a finite output, .* 'decoder.network.1.bias' is not finite"
    ):
        vae.model(VAES[0].data())
