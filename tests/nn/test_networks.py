"""Encoders and decoders."""

import pytest
import torch
from torch import nn

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.nn import DECODERS, Encoder, GyroplaneLinear, ManifoldModule, MobiusLinear, build_decoder, mlp
from tests.helpers import ROUNDING, same

every_decoder = pytest.mark.parametrize("name", DECODERS)


def decoder(name, c=1.0, learnable=False, data_shape=(3, 4)):
    return build_decoder(name, ManifoldModule(PoincareBall(c), learnable), 2, data_shape, hidden_dim=16)


def latents(*batch, dtype=torch.float32):
    return 0.4 * torch.rand(*batch, 2, dtype=dtype) + 0.1


def test_mlp_has_no_activation_at_the_end():
    layers = mlp(2, 3, 4)
    assert [type(layer) for layer in layers] == [nn.Linear, nn.ReLU, nn.Linear]
    assert [(layers[i].in_features, layers[i].out_features) for i in (0, 2)] == [(2, 3), (3, 4)]


@pytest.mark.parametrize("batch", [(), (7,), (2, 7)], ids=str)
@pytest.mark.parametrize("data_shape", [(6,), (3, 4), (1, 3, 2)], ids=str)
@pytest.mark.parametrize("scale_dim", [1, 2])
def test_encoder(scale_dim, data_shape, batch):
    encoder = Encoder(data_shape, 5, 2, scale_dim)
    x = torch.randn(*batch, *data_shape)
    loc, scale = encoder(x)
    assert loc.shape == (*batch, 2)
    assert scale.shape == (*batch, scale_dim)
    assert (scale > 0).all()
    hidden = torch.relu(encoder.trunk[0](x.reshape(*batch, -1)))
    same(loc, encoder.loc(hidden), ROUNDING[torch.float32])
    same(scale, (1 + encoder.scale(hidden).exp()).log(), ROUNDING[torch.float32])


@pytest.mark.parametrize("data_shape", [(6,), (3, 4)], ids=str)
@pytest.mark.parametrize("batch", [(), (7,), (2, 7)], ids=str)
@every_decoder
def test_decoder_shapes(name, batch, data_shape):
    assert decoder(name, data_shape=data_shape)(latents(*batch)).shape == (*batch, *data_shape)


@every_decoder
def test_leading_dimensions_are_batches(name):
    network, z = decoder(name), latents(2, 7)
    same(network(z)[1, 3], network(z[1, 3]), ROUNDING[torch.float32])


@pytest.mark.parametrize("network_dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("latent_dtype", [torch.float32, torch.float64], ids=str)
@every_decoder
def test_output_has_the_dtype_of_the_network(name, latent_dtype, network_dtype):
    network = decoder(name).to(network_dtype)
    out = network(latents(7, dtype=latent_dtype))
    assert out.dtype == network_dtype


@pytest.mark.parametrize("name", ["gyroplane", "logmap", "mobius"])
def test_first_layer_computes_in_the_dtype_of_the_latents(name):
    # Two points that float32 coordinates cannot tell from each other, at distance 20 of the origin.
    ball = PoincareBall(1.0)
    z = ball.expmap0(torch.tensor([[10.0, 0.0], [10.5, 0.0]], dtype=torch.float64))
    network = decoder(name)
    wide = network.double()(z)
    network.float()
    assert torch.equal(z[0].float(), z[1].float())
    assert not torch.equal(network(z)[0], network(z)[1])
    same(network(z), wide, 1e-5)


FIRST_LAYERS = {
    "gyroplane": lambda network: isinstance(network.embed, GyroplaneLinear),
    "logmap": lambda network: not list(network.embed.parameters()) and network.network[0].in_features == 2,
    "mlp": lambda network: isinstance(network.embed, nn.Identity),
    "mobius": lambda network: isinstance(network.embed[0], MobiusLinear),
}


@every_decoder
def test_first_layer(name):
    assert FIRST_LAYERS[name](decoder(name))


def test_logmap_decoder_sees_tangent_vectors():
    network, v = decoder("logmap"), torch.randn(7, 2)
    z = PoincareBall(1.0).expmap0(v)
    same(network(z), network.network(v).reshape(7, 3, 4), 1e-5)


def test_output_is_the_last_layer():
    for name in DECODERS:
        network = decoder(name)
        assert network.output.out_features == 12
        with torch.no_grad():
            network.output.weight.zero_()
            network.output.bias.copy_(torch.arange(12.0))
        same(network(latents()), torch.arange(12.0).reshape(3, 4), 0.0)


@pytest.mark.parametrize("sizes", [(5, 0, 3), (5, 2.5, 3), (5, 4, -1), (5,)], ids=str)
def test_sizes_that_are_none(sizes):
    with pytest.raises(ValueError, match=r"each of sizes must be a positive integer, got|sizes must be those of"):
        mlp(*sizes)


def test_unknown_decoder():
    with pytest.raises(ValueError, match=r"decoder must be one of \['gyroplane', .*\], got 'spline'"):
        decoder("spline")


@pytest.mark.parametrize("name", ["gyroplane", "logmap", "mobius"])
def test_curvature_learns_through_the_decoder(name):
    network = decoder(name, learnable=True)
    network(latents(7)).square().sum().backward()
    (gradient,) = [p.grad for n, p in network.named_parameters() if n.endswith("raw")]
    assert gradient.isfinite()
    assert gradient != 0


@pytest.mark.parametrize("distribution", [WrappedNormal, RiemannianNormal])
@pytest.mark.parametrize("c", [1e-3, 1.0, 10.0])
@every_decoder
def test_curvature_learns_through_distribution_and_decoder(name, c, distribution):
    manifold = ManifoldModule(PoincareBall(c), learnable=True)
    network = build_decoder(name, manifold, 2, (6,), hidden_dim=16)
    posterior = distribution(manifold().expmap0(torch.randn(7, 2) / 4), torch.full((7, 1), 0.3), manifold())
    z = posterior.rsample()
    terms = [network(z).square().sum(), posterior.log_prob(z).sum()]
    gradients = [torch.autograd.grad(term, manifold.raw, retain_graph=True)[0] for term in terms]
    assert all(g.isfinite() and g != 0 for g in gradients)
