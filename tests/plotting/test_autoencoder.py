from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from pyro_hyperbolic import Lorentz, PoincareBall, plotting
from pyro_hyperbolic.analysis import TangentPCA
from pyro_hyperbolic.distributions.base import base_distribution
from pyro_hyperbolic.geometry import Sphere, signature_dim
from pyro_hyperbolic.models import EuclideanVAE, ManifoldVAE
from pyro_hyperbolic.plotting.lens import Lens

DATA = torch.rand(12, 6, generator=torch.Generator().manual_seed(0))


def vae(space: Any, dim: int) -> Any:
    torch.manual_seed(0)
    if space is None:
        return EuclideanVAE(dim, 6, hidden_dim=5)
    return ManifoldVAE(space, dim, 6, hidden_dim=5)


@pytest.mark.parametrize("space", [None, PoincareBall(0.7), Lorentz(0.7)], ids=str)
def test_two_dimensions_are_the_posterior_means(space: Any, ax: Axes) -> None:
    model = vae(space, 2)
    plotting.latent_space(model, DATA, torch.arange(12) % 3, ax, s=7)
    z = base_distribution(model.encode(DATA)).loc.detach()
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
def test_other_dimensions_are_projected(space: Any, dim: int, ax: Axes) -> None:
    model = vae(space, dim)
    plotting.latent_space(model, DATA, ax=ax)
    z = base_distribution(model.encode(DATA)).loc.detach()
    ball = PoincareBall(0.0 if space is None else 0.7)
    z = (space.to_poincare(z) if isinstance(space, Lorentz) else z).double()
    (dots,) = ax.collections
    drawn = torch.tensor(dots.get_offsets().tolist(), dtype=torch.float64)
    if dim == 1:
        torch.testing.assert_close(drawn, torch.cat([z, torch.zeros_like(z)], -1))
        assert ax.get_title() == ""
    else:
        torch.testing.assert_close(drawn, TangentPCA(2).fit_transform(z, ball))
        assert ax.get_title().startswith("4 dimensions are projected to two")


@pytest.mark.parametrize(
    ("signature", "circles"), [("s2", 1), ("e2", 0), ("u2", 0), ("h2,s2,e2", 1), ("p3,s1", 1)], ids=str
)
def test_every_factor_of_a_space_is_drawn(signature: str, circles: int, tmp_path: Path) -> None:
    model = vae(signature, signature_dim(signature))
    factors = [leaf for leaf, _ in model.manifold.leaves(signature_dim(signature))]
    found = 0
    for number, factor in enumerate(factors):
        _, ax = plt.subplots()
        plotting.latent_space(model, DATA, ax=ax, factor=number, gyroplanes=2)
        dots = torch.tensor(ax.collections[0].get_offsets().tolist(), dtype=torch.float64)
        z = base_distribution(model.encode(DATA)).loc.detach().double()
        z = model.manifold.split(z)[number] if len(factors) > 1 else z
        if factor.intrinsic_dim(z.shape[-1]) == 2:
            # All of these pictures show directions as they are, and the nearer the farther in.
            torch.testing.assert_close(dots.norm(dim=-1).argsort(), factor.dist0(z).argsort())
        if isinstance(factor, Sphere):
            (border,) = ax.patches
            assert bool((dots.norm(dim=-1) < border.radius).all())
            found += 1
        plt.close("all")
    assert found == circles
    pages = plotting.explore_latents(model, DATA, tmp_path / "page.html", labels=torch.arange(12) % 3)
    assert [page.path for page in pages] == sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=f"factor must be one of the {len(factors)} of"):
        plotting.latent_space(model, DATA, factor=len(factors))


@pytest.mark.parametrize("view", ["klein", "equidistant"])
def test_views_and_centers(view: str, ax: Axes) -> None:
    model = vae(PoincareBall(0.7), 2)
    plotting.latent_space(model, DATA, ax=ax, gyroplanes=2, view=view, center="mean")
    dots = torch.tensor(ax.collections[0].get_offsets().tolist(), dtype=torch.float64)
    z = base_distribution(model.encode(DATA)).loc.detach().double()
    ball = PoincareBall(0.7)
    middle = Lens(ball, view, ball.frechet_mean(z))
    torch.testing.assert_close(dots, middle(z), rtol=1e-5, atol=1e-6)


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
    model = ManifoldVAE(PoincareBall(1.0), 2, 6, hidden_dim=5, decoder="mlp")
    plotting.latent_space(model, DATA, ax=ax, gyroplanes=3)
    assert not any(isinstance(artist, LineCollection) for artist in ax.collections)


def test_new_axes_by_default() -> None:
    assert plotting.latent_space(vae(None, 2), DATA).has_data()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vae": 3}, "vae must be a ManifoldVAE such as HyperbolicVAE, got int; pass the model"),
        ({"data": DATA.numpy()}, r"data must be a tensor, got ndarray; pass torch.as_tensor\(data\)"),
        ({"data": DATA[:, :5]}, r"x must have shape \(N, 6\), got \(12, 5\)"),
        ({"projection": "umap"}, "projection must be one of horo, tangent, or .* got 'umap'"),
        ({"projection": TangentPCA(3)}, "projection must have dim = 2, got 3"),
        ({"gyroplanes": -1}, "gyroplanes must be an integer of at least 0, got -1"),
        ({"factor": "a"}, "factor must be an integer, got 'a'"),
        ({"vae": vae("p3", 3), "ax": 3}, "ax must be matplotlib Axes, got int"),
    ],
)
def test_mistakes(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"vae": vae(PoincareBall(1.0), 2), "data": DATA} | change
    with pytest.raises(ValueError, match=message):
        plotting.latent_space(**arguments)
    assert not plt.get_fignums()


def test_a_page_of_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vae must be a ManifoldVAE such as HyperbolicVAE, got int"):
        plotting.explore_latents(3, DATA, tmp_path / "page.html")  # type: ignore[arg-type]
