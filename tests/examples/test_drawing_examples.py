"""The examples that draw without training, with tiny settings."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import networkx
import pytest
import torch

matplotlib.use("agg")
import matplotlib.pyplot as plt

from pyro_hyperbolic import PoincareBall

EXAMPLES = Path(__file__).parents[2] / "examples"

# example, arguments, files that it writes to the folder {out}
RUNS = [
    ("tree_embedding", "--depth 2 --output {out}/tree.png", ["tree.png", "tree.html"]),
    (
        "tree_embedding",
        "--branching 2 --depth 3 --curvature 0.1 --output {out}/tree.svg",
        ["tree.svg", "tree.html"],
    ),
    ("tree_embedding", "--depth 2 --edge-length 1 --curvature 5 --output {out}/tree.pdf", ["tree.pdf", "tree.html"]),
    ("densities", "--resolution 16 --output-dir {out}", ["densities_isotropic.png", "densities_anisotropic.png"]),
    (
        "densities",
        "--resolution 16 --curvature 0.1 --scale 2 --lebesgue --format svg --output-dir {out}/new",
        ["new/densities_isotropic.svg", "new/densities_anisotropic.svg"],
    ),
]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def run(name: str, arguments: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(out)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments.format(out=out).split()])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize(("name", "arguments", "files"), RUNS)
def test_runs(
    name: str,
    arguments: str,
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(name, arguments, tmp_path, monkeypatch)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(written) == sorted(tmp_path / file for file in files)
    assert all(path.stat().st_size > 1000 for path in written)
    assert all(file in capsys.readouterr().out for file in files[:1])
    assert not plt.get_fignums()


@pytest.mark.parametrize("c", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("branching", [2, 3])
def test_tree_is_regular_with_edges_of_one_length(c: float, branching: int) -> None:
    example = runpy.run_path(str(EXAMPLES / "tree_embedding.py"))
    ball = PoincareBall(c)
    length = 2 * example["shortest_edge"](branching, ball)
    points, parents = example["embed_tree"](branching, 3, length, ball)
    nodes = torch.arange(1, len(points))
    edges = ball.dist(points[nodes], points[parents[nodes]])
    torch.testing.assert_close(edges, torch.full_like(edges, length))

    tree = networkx.Graph(list(zip(nodes.tolist(), parents[nodes].tolist(), strict=True)))
    assert {degree for _, degree in tree.degree()} == {1, branching + 1}
    hops = example["tree_distances"](parents)
    expected = dict(networkx.all_pairs_shortest_path_length(tree))
    assert all(hops[i, j] == expected[i][j] for i in tree for j in tree)

    worst, average = example["distortion"](points, hops, ball)
    assert 1 < worst < 1.5
    assert 0 < average < worst - 1


def test_distortion_vanishes_as_edges_grow() -> None:
    example = runpy.run_path(str(EXAMPLES / "tree_embedding.py"))
    ball = PoincareBall(1.0)
    worst = []
    for length in (1.0, 2.0, 4.0, 8.0):
        points, parents = example["embed_tree"](2, 2, length, ball)
        worst.append(example["distortion"](points, example["tree_distances"](parents), ball)[0])
    assert worst == sorted(worst, reverse=True)
    assert worst[-1] < 1.05
