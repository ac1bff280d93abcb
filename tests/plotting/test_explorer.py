"""The page as a file; what it does in a browser is tested in tests/browser."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from PIL import Image

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, datasets, plotting
from pyro_hyperbolic.analysis import TangentPCA
from pyro_hyperbolic.geometry import Euclidean, Manifold, Product, Sphere, Stereographic
from pyro_hyperbolic.nn import ManifoldModule

DOUBLE = torch.float64
BALL = PoincareBall(1.0)
POINTS = torch.tensor([[0.0, 0.0], [0.6, 0.1], [-0.5, 0.2], [0.1, -0.7]], dtype=DOUBLE)
NASTY = "</script><script>alert(1)</script><!-- ' \" \u2028 &"


def content(page: plotting.Explorer) -> dict[str, Any]:
    """What the script of the page reads."""
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.html, re.DOTALL)
    return json.loads(data)


def numbers(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["data"]), dtype="<" + packed["kind"])


@pytest.mark.parametrize(
    "manifold",
    [
        BALL,
        PoincareBall(torch.tensor(0.3)),
        Lorentz(2.0),
        Euclidean(),
        PoincareBall(0.0),
        Sphere(2.0),
        Stereographic(0.4),
    ],
    ids=str,
)
def test_distances_of_the_packed_points(manifold: Manifold) -> None:
    torch.manual_seed(0)
    x = manifold.from_normal_coords(None, torch.randn(6, 2, dtype=DOUBLE) / 2)
    data = content(plotting.explore(x, manifold, None))
    q = numbers(data["points"]).reshape(-1, 2) @ [1, 1j]
    p = np.sqrt(1 - data["sign"] * np.abs(q) ** 2)
    apart = np.abs(q[:, None] * p - q * p[:, None])
    half = {-1: np.arcsinh, 0: np.copy, 1: np.arcsin}[data["sign"]](apart)
    c = manifold.with_curvatures([float(c) for c in manifold.curvatures])
    np.testing.assert_allclose(2 * data["unit"] * half, c.pairwise_dist(x, x).numpy(), rtol=1e-12, atol=1e-12)


def test_far_points_are_finite() -> None:
    h = Lorentz(1.0)
    x = h.from_normal_coords(None, torch.tensor([[600.0, 0.0], [0.0, -3.0]], dtype=DOUBLE))
    q = numbers(content(plotting.explore(x, h, None))["points"]).reshape(-1, 2)
    np.testing.assert_allclose(q, [[math.sinh(300), 0], [0, -math.sinh(1.5)]], rtol=1e-9)


def test_one_file_without_network(tmp_path: Path) -> None:
    page = plotting.explore(POINTS, BALL, tmp_path / "new" / "page.html", names=[NASTY] * 4, title=NASTY)
    assert page.path == tmp_path / "new" / "page.html"
    text = page.path.read_text("utf-8")
    assert text == page.html
    assert list(page.path.parent.iterdir()) == [page.path]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; img-src data: blob:;")
    assert "unsafe" not in policy[1]
    assert content(page)["names"] == [NASTY] * 4

    tags: list[tuple[str, dict[str, Any]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(text)
    assert [tag for tag, _ in tags].count("script") == 2
    assert not [tag for tag, attributes in tags if {"src", "href"} & attributes.keys()]


def test_shows_itself_in_a_notebook() -> None:
    page = plotting.explore(POINTS, BALL, None, names=[NASTY] * 4)
    frames: list[dict[str, Any]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: frames.append(dict(attributes))  # type: ignore[method-assign]
    parser.feed(page._repr_html_())
    (frame,) = frames
    assert frame["srcdoc"] == page.html
    assert "allow-same-origin" not in frame["sandbox"]
    assert repr(page) == "Explorer('Latent space')"


def test_labels_and_edges() -> None:
    edges = torch.tensor([[0, 1], [1, 3]])
    data = content(plotting.explore(POINTS, BALL, None, labels=["a", "b", "a", "c"], edges=edges))
    assert [c["name"] for c in data["labels"]["classes"]] == ["a", "b", "c"]
    assert numbers(data["labels"]["index"]).tolist() == [0, 1, 0, 2]
    assert numbers(data["edges"]).tolist() == [0, 1, 1, 3]
    data = content(plotting.explore(POINTS, BALL, None, labels=[0.5, 2.0, 1.0, -3.0]))
    assert (data["labels"]["low"], data["labels"]["high"]) == (-3.0, 2.0)


# Posteriors in single precision, and in the other charts of the space of POINTS.
SINGLE = hdist.WrappedNormal(POINTS.float(), 0.4, PoincareBall(torch.tensor(0.7)))
CHARTS = {
    chart: hdist.WrappedNormal(
        chart.from_normal_coords(None, BALL.to_normal_coords(None, POINTS)), torch.tensor([0.4, 0.2]).double(), chart
    )
    for chart in (BALL, Lorentz(1.0), Stereographic(-1.0))
}


@pytest.mark.parametrize("chart", CHARTS, ids=repr)
def test_posteriors_in_any_chart_of_the_space(chart: Manifold) -> None:
    expected, found = (content(plotting.explore(POINTS, BALL, None, scales=CHARTS[c])) for c in (BALL, chart))
    for one, other in zip(expected["regions"], found["regions"], strict=True):
        np.testing.assert_allclose(numbers(one["tril"]), numbers(other["tril"]), rtol=1e-6)
    # Rounded curvatures and points are the same.
    plotting.explore(POINTS, PoincareBall(0.7), None, scales=SINGLE)


def test_regions_of_gaussians() -> None:
    tril = torch.tensor([[0.4, 0.0], [0.3, 0.2]]).double()
    for distribution, expected in (
        (pyro.distributions.Normal(POINTS, 0.4).to_event(1), [0.4, 0.0, 0.4]),
        (pyro.distributions.MultivariateNormal(POINTS, scale_tril=tril), [0.4, 0.3, 0.2]),
    ):
        region = content(plotting.explore(POINTS, Euclidean(), None, scales=distribution))["regions"][0]
        found = numbers(region["tril"]).reshape(4, 3)
        np.testing.assert_allclose(found, np.tile(np.multiply(expected, math.sqrt(2 * math.log(2))), (4, 1)), rtol=1e-6)


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        (0.4, [0.4, 0.0, 0.4]),
        (torch.full((4,), 0.4), [0.4, 0.0, 0.4]),
        (torch.tensor([[0.4, 0.2]]).expand(4, 2), [0.4, 0.0, 0.2]),
        (torch.tensor([[0.4, 0.0], [0.3, 0.2]]).expand(4, 2, 2), [0.4, 0.3, 0.2]),
        (hdist.WrappedNormal(POINTS / 2, torch.full((4, 1), 0.4).double(), PoincareBall(4.0)), [0.4, 0.0, 0.4]),
    ],
)
def test_regions(scales: Any, expected: list[float]) -> None:
    ball = PoincareBall(4.0)
    data = content(plotting.explore(POINTS / 2, ball, None, scales=scales))
    assert [region["level"] for region in data["regions"]] == [0.5, 0.9]
    for region in data["regions"]:
        radius = math.sqrt(-2 * math.log(1 - region["level"]))
        tril = numbers(region["tril"]).reshape(4, 3)
        np.testing.assert_allclose(tril, np.tile(np.multiply(expected, 2 * radius), (4, 1)), rtol=1e-6)


def test_region_of_the_riemannian_normal_has_its_quantile() -> None:
    ball = PoincareBall(0.5)
    distribution = hdist.RiemannianNormal(POINTS, torch.tensor([[0.5], [1.0], [1.5], [2.0]]).double(), ball)
    data = content(plotting.explore(POINTS, ball, None, scales=distribution))
    for region in data["regions"]:
        radius = torch.from_numpy(numbers(region["tril"]).reshape(4, 3)[:, 0].astype(float)) * data["unit"]
        share = hdist.HyperbolicRadius(2, distribution.scale.squeeze(-1), ball.c).cdf(radius)
        torch.testing.assert_close(share, torch.full((4,), region["level"], dtype=DOUBLE), rtol=1e-5, atol=0)


def test_draws_go_with_their_point() -> None:
    draws = BALL.mobius_scalar_mul(torch.tensor([0.5, 0.9])[:, None].double(), POINTS)
    data = content(plotting.explore(POINTS, BALL, None, draws=draws))
    q = numbers(data["draws"]).reshape(4, 2, 2)
    expected = draws / (1 - draws.square().sum(-1, keepdim=True)).sqrt()
    np.testing.assert_allclose(q, expected.transpose(0, 1).numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("center", "point"),
    [(1, POINTS[1]), (-1, POINTS[3]), (POINTS[2], POINTS[2]), ("mean", BALL.frechet_mean(POINTS)), (None, POINTS[0])],
)
def test_center(center: Any, point: torch.Tensor) -> None:
    a, b, c, d = content(plotting.explore(POINTS, BALL, None, center=center))["home"]
    assert (a, b) == (pytest.approx(1 / math.sqrt(1 - float(point @ point))), 0)
    assert (-c / a, -d / a) == pytest.approx(point.tolist())


@pytest.mark.parametrize(
    ("manifold", "projection"),
    [
        (PoincareBall(0.5), "tangent"),
        pytest.param(Lorentz(0.5), "horo", marks=pytest.mark.slow),
        (PoincareBall(0.5), TangentPCA),
    ],
    ids=str,
)
def test_more_dimensions_are_projected(manifold: Manifold, projection: Any) -> None:
    x = manifold.from_normal_coords(None, 0.3 * torch.randn(9, 4, dtype=DOUBLE))
    projection = projection if isinstance(projection, str) else projection(2)
    data = content(plotting.explore(x, manifold, None, draws=x[None], center=x[3], projection=projection))
    assert re.search(
        r"4 dimensions are projected to two, which keep \d+% of the squared distances", data["description"]
    )
    assert numbers(data["draws"]).tolist() == numbers(data["points"]).tolist()
    q = numbers(data["points"]).reshape(-1, 2)
    assert data["home"][2:] == pytest.approx((-q[3]).tolist())


def test_one_dimension_is_a_line() -> None:
    q = numbers(content(plotting.explore(POINTS[:, :1], BALL, None))["points"]).reshape(-1, 2)
    np.testing.assert_allclose(q[:, 0], (POINTS[:, 0] / (1 - POINTS[:, 0] ** 2).sqrt()).numpy(), atol=1e-12)
    assert not q[:, 1].any()


@pytest.mark.parametrize(
    ("images", "bits", "kind"),
    [
        (torch.rand(4, 5, 7), 4, "L"),
        ((torch.rand(4, 1, 5, 7) > 0.5).float(), 1, "L"),
        (torch.randint(0, 256, (4, 3, 5, 7), dtype=torch.uint8), 8, "RGB"),
        (torch.rand(4, 5, 7, 3), 8, "RGB"),
    ],
)
def test_thumbnails(images: torch.Tensor, bits: int, kind: str) -> None:
    found = content(plotting.explore(POINTS, BALL, None, images=images))["images"]
    png = base64.b64decode(found["data"])
    assert png[24] == bits
    sheet = np.asarray(Image.open(io.BytesIO(png)).convert(kind))
    x = images.double() / 255 if images.dtype == torch.uint8 else images.double()
    x = x.movedim(1, -1) if x.dim() == 4 and x.shape[1] in (1, 3) else x
    for i in range(4):
        top, left = divmod(i, found["columns"])
        cut = sheet[top * 5 : top * 5 + 5, left * 7 : left * 7 + 7].reshape(x[i].shape)
        assert np.abs(cut / 255 - x[i].numpy()).max() < (0.2 if kind == "RGB" else 1 / 29)


def test_large_images_are_made_small() -> None:
    found = content(plotting.explore(POINTS, BALL, None, images=torch.full((4, 100, 200), 0.6)))["images"]
    assert (found["width"], found["height"]) == (64, 32)


@pytest.mark.slow
def test_five_thousand_digits_take_less_than_eight_megabytes(tmp_path: Path) -> None:
    images, labels = datasets.mnist(train=True, bundled=True)
    points = BALL.from_normal_coords(None, torch.randn(5000, 2, dtype=DOUBLE))
    page = plotting.explore(points, BALL, tmp_path / "latent.html", labels=labels, images=images, scales=0.1)
    assert page.path is not None
    assert page.path.stat().st_size < 8e6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": POINTS.reshape(2, 2, 2)}, r"points must have shape \(N, D\), got \(2, 2, 2\)"),
        ({"points": POINTS @ torch.eye(2, 3).double(), "scales": 1.0}, "scales are drawn in two dimensions only"),
        ({"projection": "umap"}, "projection must be one of horo, tangent, or a TangentPCA or HoroPCA, got 'umap'"),
        ({"projection": 3}, "projection must be one of horo, tangent, .* got 3"),
        ({"points": POINTS @ torch.eye(2, 3).double(), "projection": TangentPCA(3)}, "projection must have dim = 2"),
        ({"points": 2 * POINTS}, r"points must be points of PoincareBall\(c=1.0\), got 3 that are not.*projx"),
        ({"points": POINTS * math.nan}, "points must be finite"),
        (
            {"manifold": Product((Euclidean(), 1), (Euclidean(), 1))},
            "manifold must be of constant curvature, .* one factor at a time",
        ),
        ({"manifold": PoincareBall(torch.tensor([1.0, 2.0]))}, "manifold must have one curvature"),
        ({"manifold": ManifoldModule(BALL)}, r"manifold must be a Manifold, got a module, .* call it: module\(\)"),
        ({"path": "page.txt"}, "path must end in .html, got 'page.txt'"),
        ({"names": "abcd"}, "names must be 4 strings"),
        ({"names": ["a"]}, "names must be 4 strings"),
        ({"labels": [1, 2, 3]}, "labels must have one entry per point"),
        ({"edges": torch.tensor([[0, 4]])}, "edges must be indices of the 4 points"),
        ({"scales": torch.ones(3)}, r"scales must be a number, \(4,\)"),
        ({"scales": -1.0}, "scales must be positive"),
        ({"scales": torch.ones(4, 2, 2)}, "lower Cholesky"),
        ({"scales": hdist.WrappedNormal(POINTS[:3], 1.0, BALL)}, r"posteriors of batch shape \(4,\)"),
        (
            {"scales": CHARTS[BALL], "manifold": PoincareBall(1.01)},
            r"the space of the points, PoincareBall\(c=1.01\), got",
        ),
        (
            {"scales": CHARTS[BALL], "manifold": Euclidean()},
            r"points, Euclidean\(\), got WrappedNormal on PoincareBall",
        ),
        (
            {"scales": pyro.distributions.Normal(POINTS, 1.0).to_event(1)},
            r"PoincareBall\(c=1.0\), got Normal on Euclidean",
        ),
        (
            {"scales": hdist.WrappedNormal(POINTS.flip(0), 1.0, BALL)},
            "means at the points, got 4 of 4 .*posterior.mean",
        ),
        (
            {"scales": hdist.WrappedNormal(POINTS + 1e-4, 1.0, BALL)},
            "got 4 of 4 that are elsewhere, the first in row 0",
        ),
        ({"scales": hdist.WrappedNormal(torch.zeros(4, 3), 1.0, BALL)}, r"of two dimensions, got event shape \(3,\)"),
        ({"draws": POINTS}, r"draws must have shape \(S, 4, 2\)"),
        ({"images": torch.rand(4, 784)}, "images must be .* reshape flat images"),
        ({"images": 7 * torch.ones(4, 2, 2)}, "images must be bytes or numbers from 0 to 1"),
        ({"center": 4}, "center must be an index of the 4 points, got 4"),
        ({"center": "middle"}, "center must be a point, an index or 'mean'"),
        ({"center": POINTS}, r"center must be one point \(2,\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_mistakes(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"points": POINTS, "manifold": BALL, "path": None} | change
    with pytest.raises(ValueError, match=message):
        plotting.explore(**arguments)
