"""``experiments/figures``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments import Ablation, Job, RunStore, Settings, Table1, Table2, Table3
from experiments.cli import main
from experiments.figures import FIGURES, branching, draw
from experiments.figures import source as source_module
from experiments.figures.branching import embed, subtrees
from experiments.figures.confusion import confusion
from experiments.figures.decoders import decoder_ablation
from experiments.figures.densities import isotropic
from experiments.figures.hyperplanes import LEAST_SHARE, first_layer, most_telling, planes
from experiments.figures.mnist import EUCLIDEAN, HYPERBOLIC
from experiments.figures.plane_distances import _log_distance
from experiments.figures.projection import project
from experiments.figures.source import Source
from experiments.figures.thumbnails import thumbnails
from experiments.mnist import digits
from experiments.table1 import BranchingCell
from experiments.table3 import ClassifierCell
from pyro_hyperbolic import PoincareBall, datasets
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE

TABLE1 = replace(Table1(), seeds=2, epochs=1, hidden_dim=8, iwae_samples=2)
TABLE2 = replace(Table2(), seeds=1, epochs=1, hidden_dim=8, iwae_samples=2, data_limit=256)
TABLE3 = Table3(embedding=TABLE2, seeds=5)
ABLATION = replace(Ablation(), seeds=3)
TINY = {"table1": TABLE1, "table2": TABLE2, "table3": TABLE3, "ablation": ABLATION}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _no_figures_of_others() -> None:
    plt.close("all")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module", autouse=True)
def _few_digits_and_steps() -> Iterator[None]:
    original = datasets.mnist
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "mnist", lambda train: original(train=train, bundled=True))
        patch.setattr(branching, "GPLVM_STEPS", 2)
        digits.cache_clear()
        yield
    digits.cache_clear()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Made up runs of the classifiers and the decoders; models are trained when they are needed."""
    store = RunStore(tmp_path_factory.mktemp("results"))
    for row in (EUCLIDEAN, HYPERBOLIC):
        for seed in range(TABLE3.seeds):
            counts = torch.full((10, 10), 1) + (91 + seed) * torch.eye(10, dtype=torch.long)
            accuracy = (counts.trace() / counts.sum()).item()
            store.append(
                Job(TABLE3, ClassifierCell(row), seed), metrics={"confusion": counts.tolist(), "accuracy": accuracy}
            )
    for cell in ABLATION.cells():
        for seed in range(ABLATION.seeds):
            store.append(Job(ABLATION, cell, seed), metrics={"negative_iwae": loss(cell, seed)})
    return store


def loss(cell: Any, seed: int) -> float:
    """Of a made up run of the ablation; one run diverged."""
    if (cell.decoder, cell.latent_dim, seed) == ("gyroplane", 5, 1):
        return float("nan")
    return {"mlp": 100.0, "logmap": 99.0, "gyroplane": 98.0}[cell.decoder] + seed * (1 + cell.latent_dim % 3)


@pytest.fixture
def source(store: RunStore) -> Source:
    return Source(store, Settings(), **TINY)


# Those that take long; the densities and the confusion have further tests below.
LONG = {"densities_isotropic", "densities_anisotropic", "branching_embeddings", "branching_curvatures"}
LONG |= {"mnist_latents", "confusion", "branching_distances", "branching_gyroplanes"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in FIGURES])
def test_is_drawn(name: str, store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw([name], store, tmp_path, Settings(), TINY)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path == tmp_path / "figures" / f"{name}.png"
    assert path.read_bytes().startswith(PNG)
    assert 10_000 < path.stat().st_size < 500_000
    assert capsys.readouterr().out == f"{path}\n"
    assert not plt.get_fignums()


def test_command_line_hands_its_settings_on(
    store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Source] = []
    monkeypatch.setitem(FIGURES, "geodesics", lambda source: seen.append(source) or plt.figure())
    arguments = "--figures geodesics --epochs 3 --seeds 2 --samples 7 --device cpu"
    main(["figures", *arguments.split(), "--results", str(tmp_path)])
    assert "geodesics.png" in capsys.readouterr().out
    (source,) = seen
    assert source.table1 == replace(Table1(), seeds=2, epochs=3, iwae_samples=7)
    assert source.table2 == source.table3.embedding == replace(Table2(), seeds=2, epochs=3, iwae_samples=7)
    assert source.ablation == replace(Ablation(), seeds=2, epochs=3, iwae_samples=7)


def test_models_are_trained_once_and_only_those_that_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(RunStore(tmp_path), Settings(rank=1, world=2), table1=TABLE1)
    cells = [BranchingCell(0.0, 1.7), BranchingCell(1.0, 1.7)]
    first = source.branching_models(cells)
    records = source.store.records("table1")
    assert records.keys() == {Job(TABLE1, cell, 0).key for cell in cells}
    monkeypatch.setattr(source_module, "sweep", None)
    for one, other in zip(first, source.branching_models(cells), strict=True):
        states = one.state_dict(), other.state_dict()
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_run_without_its_model_is_an_error(tmp_path: Path) -> None:
    source = Source(RunStore(tmp_path), table1=TABLE1)
    job = Job(TABLE1, BranchingCell(1.0, 1.7), 0)
    source.store.append(job, metrics={"negative_iwae": 50.0})
    with pytest.raises(ValueError, match=rf"c=1\.0, sigma0=1\.7, seed 0, are not in .*table1-{job.key}\.pt"):
        source.branching_models([job.cell])


@pytest.mark.parametrize(("name", "command"), [("confusion", "table3"), ("decoder_ablation", "ablation")])
def test_missing_runs_are_named_after_the_rest_is_drawn(name: str, command: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{name}: .*python -m experiments {command} --results"):
        draw([name, "geodesics"], RunStore(tmp_path), tmp_path, Settings())
    assert [path.name for path in (tmp_path / "figures").iterdir()] == ["geodesics.png"]
    assert not plt.get_fignums()


def test_ablation_without_a_common_seed_is_an_error(source: Source, tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for cell in ABLATION.cells():
        store.append(Job(ABLATION, cell, int(cell.decoder == "mlp")), metrics={"negative_iwae": 100.0})
    with pytest.raises(
        ValueError, match=r"logmap, d=2 and .*mlp, d=2, have no finite results of one seed; run `python"
    ):
        decoder_ablation(replace(source, store=store))


def test_unknown_figure_is_an_error(store: RunStore, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"names must be among tree_embedding, .*, got nothing"):
        draw(["nothing"], store, tmp_path, Settings())


def test_figure_is_complete_or_the_old_one(store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figures" / "geodesics.png"
    path.parent.mkdir()
    path.write_text("old")

    def break_down(figure: Figure, target: Path, **options: Any) -> None:
        Path(target).write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", break_down)
    with pytest.raises(OSError, match="disk full"):
        draw(["geodesics"], store, tmp_path, Settings())
    assert [file.name for file in path.parent.iterdir()] == ["geodesics.png"]
    assert path.read_text() == "old"
    assert not plt.get_fignums()


def test_confusion_is_the_mean_over_classifiers(source: Source) -> None:
    figure = confusion(source)
    assert len(figure.axes) == 2
    for ax in figure.axes:
        shown = np.asarray(ax.images[0].get_array())
        rates = [(92 + seed) / (101 + seed) for seed in range(TABLE3.seeds)]
        assert shown.diagonal() == pytest.approx([100 * np.mean(rates)] * 10)
        assert shown.sum(1) == pytest.approx([100] * 10)
        assert f"{100 * np.mean(rates):.1f} % correct, mean of 5 classifiers" in ax.get_title()


def test_ablation_shows_means_and_intervals_over_seeds(source: Source) -> None:
    (ax,) = decoder_ablation(source).axes
    assert ax.get_title() == "diverged runs left out: 1"
    dimensions = (2, 5, 10, 20)
    assert [text.get_text() for text in ax.get_xticklabels()] == [str(d) for d in dimensions]
    cells = {(cell.decoder, cell.latent_dim): cell for cell in ABLATION.cells()}
    for container, decoder in zip(ax.containers, ("logmap", "gyroplane"), strict=True):
        line, _, (bars,) = container.lines
        for d, mean, bar in zip(dimensions, line.get_ydata(), bars.get_segments(), strict=True):
            seeds = [0, 2] if (decoder, d) == ("gyroplane", 5) else [0, 1, 2]  # the second run diverged
            pairs = [(loss(cells["mlp", d], seed), loss(cells[decoder, d], seed)) for seed in seeds]
            gains = [100 * (old - new) / old for old, new in pairs]
            half = scipy.stats.t.ppf(0.975, len(seeds) - 1) * scipy.stats.sem(gains)
            assert mean == pytest.approx(np.mean(gains))
            assert bar[:, 1] == pytest.approx([mean - half, mean + half], rel=1e-3)


@pytest.mark.parametrize("c", [0.0, 0.5, 2.0])
def test_projection_is_the_nearest_point_of_the_plane(c: float) -> None:
    ball = PoincareBall(c)
    z, p, a = torch.tensor([[0.3, -0.5], [0.2, 0.4], [1.0, 0.3]], dtype=torch.float64)
    foot = project(z, p, a, ball)
    zero = torch.zeros((), dtype=torch.float64)
    torch.testing.assert_close(ball.dist2plane(x=foot, p=p, a=a), zero, atol=1e-12, rtol=0)
    torch.testing.assert_close(ball.dist(z, foot), ball.dist2plane(x=z, p=p, a=a, signed=False))


@pytest.mark.parametrize("c", [0.0, 1.3])
def test_planes_are_where_the_units_are_zero(c: float) -> None:
    torch.manual_seed(0)
    ball = PoincareBall(c)
    vae = HyperbolicVAE(ball, 2, 5, hidden_dim=16) if c else EuclideanVAE(2, 5, hidden_dim=16)
    layer = first_layer(vae)
    p, a = planes(layer)
    across = 0.1 * nn.functional.normalize(a)
    along = torch.stack([-across[:, 1], across[:, 0]], -1)
    with torch.no_grad():
        for point in (p, ball.expmap(p, along), ball.expmap(p, -3 * along)):
            torch.testing.assert_close(layer(point).diagonal(), torch.zeros(16), atol=1e-5, rtol=0)
        assert (layer(ball.expmap(p, across)).diagonal() > 1e-3).all()


def test_chosen_plane_divides_the_points() -> None:
    torch.manual_seed(0)
    points = torch.randn(50, 2)
    vae = EuclideanVAE(2, 5, hidden_dim=3)
    layer = first_layer(vae)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 1.0], [50.0, 0.0], [0.5, -1.0]]))
        layer.bias.copy_(torch.tensor([0.0, 300.0, 0.0]))  # all points lie on one side of the second plane
        vae.decoder.output.weight.fill_(1.0)
        vae.decoder.output.weight[:, 2] = 9.0
    assert most_telling(vae, points) == 2
    share = (layer(points)[:, 2] > 0).double().mean()
    assert LEAST_SHARE <= share <= 1 - LEAST_SHARE
    with torch.no_grad():
        layer.bias.fill_(300.0)
    assert most_telling(vae, points) == 1  # none divides them, and the second is the steepest


def test_log_distance_in_the_plane_is_euclidean() -> None:
    z, p, a = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    assert _log_distance(PoincareBall(0.0), p, a, z).exp().item() == pytest.approx(3.0)


def test_samples_repeat_and_leave_the_generator_alone() -> None:
    vae = EuclideanVAE(2, 50, hidden_dim=4)
    data = datasets.branching_diffusion(depth=2)
    state = torch.get_rng_state()
    first = embed(vae, data)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    assert all(map(torch.equal, first, embed(vae, data)))
    assert first[0].shape == (len(data.nodes), 2)
    assert first[1].shape == (len(data.train), 2)


@pytest.mark.parametrize(("depth", "factor"), [(3, 2), (1, 2), (2, 3)])
def test_subtrees_are_closed_under_descent(depth: int, factor: int) -> None:
    data = datasets.branching_diffusion(depth=depth, branching=factor, dim=2)
    groups = subtrees(data)
    level = min(2, depth)
    assert (groups[data.depths < level] == -1).all()
    assert groups[data.depths == level].tolist() == list(range(factor**level))
    below = data.depths > level
    assert torch.equal(groups[below], groups[data.parents[below]])


def test_thumbnails_are_upright_and_do_not_overlap() -> None:
    images = torch.zeros(4, 2, 2)
    images[:, 0, 1] = 1.0  # top right
    points = torch.tensor([[-0.5, 0.5], [-0.4, 0.4], [0.5, -0.5], [0.95, 0.0]])
    ax = plt.subplots()[1]
    shown = thumbnails(images, points, ["red", "red", "blue", "red"], PoincareBall(1.0), ax, (-1, 1, -1, 1), across=4)
    assert shown == [0, 2]  # the second overlaps the first, and the last leaves the picture
    canvas = np.asarray(ax.images[0].get_array())
    assert canvas.shape == (8, 8, 4)
    # Rows from the bottom: the first image is centred at a quarter of the width and three of the height.
    inked = {tuple(place): canvas[tuple(place)].tolist() for place in np.argwhere(canvas[..., 3] > 0)}
    assert inked == {(6, 2): [1, 0, 0, 1], (2, 6): [0, 0, 1, 1]}


def test_isotropic_has_a_row_for_each_distribution_and_scale() -> None:
    figure = isotropic(PoincareBall(1.0), [0.5, 1.0], resolution=5)
    rows = figure.axes[::3]
    assert [ax.get_ylabel() for ax in rows] == [
        rf"{name}, $\sqrt{{c}}\,\sigma = {scale}$" for scale in ("0.5", "1") for name in ("Riemannian", "Wrapped")
    ]
    # The Riemannian normal has more mass far out, so that its peak is lower.
    peaks = [ax.images[0].get_array().max() for ax in rows]
    assert peaks[0] < peaks[1]
    assert peaks[2] < peaks[3]
