"""Spaces by their signature."""

import pytest
import torch

from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Product, Sphere, Stereographic
from pyro_hyperbolic.geometry import from_signature, signature_dim
from pyro_hyperbolic.models import ManifoldVAE, ManifoldVGAE

EDGES = torch.tensor([[0, 1], [1, 2]])


@pytest.mark.parametrize(
    ("signature", "options", "expected", "dim"),
    [
        ("h3", {}, Lorentz(1.0), 3),
        ("p2", {"c": 0.5}, PoincareBall(0.5), 2),
        ("e12", {}, Euclidean(), 12),
        ("u2", {"k": -0.3}, Stereographic(-0.3), 2),
        ("h2, s1,e2", {"c": [0.5, 2.0]}, Product((Lorentz(0.5), 2), (Sphere(2.0), 1), (Euclidean(), 2)), 5),
    ],
)
def test_space(signature, options, expected, dim):
    assert from_signature(signature, **options) == expected
    assert signature_dim(signature) == dim


@pytest.mark.parametrize("bad", ["", "h", "2", "x2", "h0", "h2,,e2", "h2;e2", "H2"])
def test_bad_signature(bad):
    with pytest.raises(ValueError, match="letters h, p, s, u, e and a dimension"):
        from_signature(bad)


@pytest.mark.parametrize("function", [from_signature, signature_dim])
def test_no_signature(function):
    with pytest.raises(ValueError, match="signature must be a string, got 3; write for example 'h2,s2,e2'"):
        function(3)


def test_wrong_number_of_curvatures():
    with pytest.raises(ValueError, match="one for each of the 2 factors"):
        from_signature("h2,s2,e2", c=[1.0])


def test_models_take_it():
    assert ManifoldVAE("h2,s2,e2", 6, 5).manifold == from_signature("h2,s2,e2")
    assert ManifoldVGAE("u3", 3, EDGES, latent_dim=3).manifold == Stereographic(0.0)
    with pytest.raises(ValueError, match="latent_dim must be the dimension 4 of 'h2,s2', got 5"):
        ManifoldVAE("h2,s2", 5, 5)
    with pytest.raises(ValueError, match=r"has dimension 4, 2 \+ 2, got 5"):
        ManifoldVAE(from_signature("h2,s2"), 5, 5)
