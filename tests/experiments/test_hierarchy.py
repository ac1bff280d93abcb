"""The example that asks whether data is hierarchical, with tiny settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import matplotlib
import networkx
import numpy as np
import pytest
import torch

matplotlib.use("agg")
import matplotlib.pyplot as plt

# A study; its short example is tested in every run.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("coarse_pictures")]
TINY = "--num-points 30 --num-samples 500"
DIGITS = "--mnist --data-dir {digits} --num-points 40 --num-epochs 1 --hidden-dim 8"


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("experiments.hierarchy")


def table(printed: str) -> dict[str, list[str]]:
    """The cells of each row, by the name of the space."""
    head, *rows, last = printed.splitlines()
    assert head.split()[-5:] == ["points", "diameter", "largest", "average", "null"]
    assert last.startswith("* of ")
    return {row[:34].strip(): row[34:].split() for row in rows}


@pytest.mark.parametrize(
    ("arguments", "spaces"),
    [
        ("", ["binary tree", "grid 3 x 3", "normal, 500 dimensions", "branching diffusion, nodes"]),
        ("--graph karate --graph balanced_tree:2:4", ["karate", "balanced_tree:2:4"]),
        ("--points {out}/points.npy --graph {out}/two.edges", ["points.npy", "two.edges"]),
        (f"{DIGITS} --latent-dim 3", ["MNIST, pixels", "MNIST, hyperbolic latents, d = 3"]),
    ],
    ids=["known", "graphs", "files", "mnist"],
)
def test_runs(
    arguments: str,
    spaces: list[str],
    example: ModuleType,
    digits: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.save(tmp_path / "points.npy", np.random.default_rng(0).normal(size=(50, 2, 3)))
    (tmp_path / "two.edges").write_text("0 1\n1 2\n2 0\n2 3\n7 8\n")
    given = f"{TINY} {arguments} --output {{out}}/picture.png".format(out=tmp_path, digits=digits)
    example.main(given.split())
    rows = table(capsys.readouterr().out)
    assert set(spaces) <= set(rows)
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert not plt.get_fignums()
    for count, _, largest, average, *_ in rows.values():
        assert int(count) >= 4
        assert 0 <= float(largest.rstrip("*")) <= 1
        assert 0 <= float(average) <= 1.5


def test_known_spaces_have_their_known_values(example: ModuleType) -> None:
    args = example.parser().parse_args(["--num-samples", "20000"])
    found = {space.name: space for space in example.known_spaces(200, seed=0)}
    averages = {name: example.measure(space.distances, args).relative_mean for name, space in found.items()}
    assert averages["binary tree"] == 0
    dims = [averages[f"normal, {dim} dimensions"] for dim in (10, 50, 500)]
    assert dims == sorted(dims, reverse=True)
    assert averages["normal, hyperbolic plane, scale 2"] < 0.6 * averages["normal, 2 dimensions"]
    grid = found["grid 10 x 10"].distances
    assert example.measure(grid, args).relative == 1  # few enough points for all quadruples
    data = found["branching diffusion, nodes"]
    assert averages[data.name] < 0.7 * example.measure(data.null, args).relative_mean


def test_null_of_points_has_their_covariance(example: ModuleType) -> None:
    factor = torch.tensor([[3.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 0.0]]).double()
    points = torch.randn(3000, 3, generator=torch.Generator().manual_seed(1)).double() @ factor.T + 5
    space = example.of_points("points", points, seed=0)
    # The mean squared distance is twice the trace of the covariance.
    for distances in (space.distances, space.null):
        assert distances.square().mean().item() == pytest.approx(2 * factor.square().sum().item(), rel=0.1)
    assert not torch.allclose(space.distances, space.null)


def test_null_of_a_graph_has_its_degrees_and_is_connected(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = networkx.gnm_random_graph(40, 50, seed=1)
    seen = []
    original = example.datasets.graph_distances
    monkeypatch.setattr(example.datasets, "graph_distances", lambda g: seen.append(g) or original(g))
    space = example.of_graph("graph", graph, seed=0)
    component, rewired = seen
    assert len(component) < len(graph)
    assert sorted(dict(component.degree).values()) == sorted(dict(rewired.degree).values())
    assert space.null.isfinite().all()
    assert set(map(frozenset, component.edges)) != set(map(frozenset, rewired.edges))


def test_latents_are_measured_in_their_own_space(example: ModuleType, digits: Path) -> None:
    options = DIGITS.format(digits=digits).split()
    args = example.parser().parse_args([*options, "--curvature", "4"])
    _, hyperbolic, euclidean = example.mnist_spaces(args)
    for space in (hyperbolic, euclidean):
        assert space.distances.shape == space.null.shape == (40, 40)
    assert example.measure(hyperbolic.null, args).delta < math.log(2) / 2
    assert hyperbolic.null.max() > 1  # more than the diameter of the disc on paper
