from __future__ import annotations

from typing import Any

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from pyro_hyperbolic import Lorentz, PoincareBall, plotting
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE

DATA = torch.rand(12, 6, generator=torch.Generator().manual_seed(0))


def vae(space: Any, dim: int) -> Any:
    torch.manual_seed(0)
    if space is None:
        return EuclideanVAE(dim, 6, hidden_dim=5)
    return HyperbolicVAE(space, dim, 6, hidden_dim=5)


@pytest.mark.parametrize("space", [None, PoincareBall(0.7), Lorentz(0.7)], ids=str)
def test_two_dimensions_are_the_posterior_means(space: Any, ax: Axes) -> None:
    model = vae(space, 2)
    plotting.latent_space(model, DATA, torch.arange(12) % 3, ax, s=7)
    z = model.encode(DATA).mean.detach()
    if isinstance(space, Lorentz):
        z = space.to_poincare(z)
    classes = [torch.tensor(dots.get_offsets().tolist()) for dots in ax.collections]
    for label, drawn in enumerate(classes):
        torch.testing.assert_close(drawn, z[label::3])
    assert len(classes) == 3
    assert {size for dots in ax.collections for size in dots.get_sizes().tolist()} == {7}
    assert ax.get_legend() is not None
    assert ax.get_title() == ""


@pytest.mark.parametrize("space", [None, PoincareBall(0.7), Lorentz(0.7)], ids=str)
@pytest.mark.parametrize("dim", [1, 4])
def test_other_dimensions_are_the_principal_plane(space: Any, dim: int, ax: Axes) -> None:
    model = vae(space, dim)
    plotting.latent_space(model, DATA, ax=ax)
    z = model.encode(DATA).mean.detach()
    if space is not None:
        z = PoincareBall(0.7).logmap0(space.to_poincare(z) if isinstance(space, Lorentz) else z)
    (dots,) = ax.collections
    drawn = torch.tensor(dots.get_offsets().tolist())
    # The plane keeps what is longest: its second moments are the largest of all directions.
    moments = torch.linalg.svdvals((z - z.mean(0)).double())[:2]
    centred = (drawn - drawn.mean(0)).double()
    torch.testing.assert_close(torch.linalg.svdvals(centred)[: len(moments)], moments, rtol=1e-4, atol=1e-6)
    assert ax.get_title() == "principal plane of the tangent space"


@pytest.mark.parametrize("space", [PoincareBall(0.7), Lorentz(0.7)], ids=str)
def test_gyroplanes_are_those_of_the_decoder(space: Any, ax: Axes) -> None:
    model = vae(space, 2)
    plotting.latent_space(model, DATA, ax=ax, gyroplanes=3)
    lines = [artist for artist in ax.collections if isinstance(artist, LineCollection)]
    segments = [torch.tensor(segment) for artist in lines for segment in artist.get_segments()]
    assert len(segments) == 3
    p, a = model.decoder.embed.planes()
    for segment, point, normal in zip(segments, p.detach(), a.detach(), strict=False):
        inside = segment[1:-1].to(point)  # the ends lie on the border
        x = space.from_poincare(inside) if isinstance(space, Lorentz) else inside
        distance = space.dist2plane(x=x[x.isfinite().all(-1)], p=point, a=normal)
        assert distance.abs().median() < 1e-2


def test_other_decoders_have_no_gyroplanes(ax: Axes) -> None:
    model = HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=5, decoder="mlp")
    plotting.latent_space(model, DATA, ax=ax, gyroplanes=3)
    assert not any(isinstance(artist, LineCollection) for artist in ax.collections)


def test_new_axes_by_default() -> None:
    assert plotting.latent_space(vae(None, 2), DATA).has_data()
