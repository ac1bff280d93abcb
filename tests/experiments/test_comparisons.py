"""``experiments/branching_diffusion.py`` and ``link_prediction.py`` with tiny settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.examples.comparing import equal

pytestmark = pytest.mark.usefixtures("coarse_pictures")
TREE = "--depth 3 --hidden-dim 16 --batch-size 16 --num-epochs 4 --checkpoint-every 2 --iwae-samples 8 --gplvm-steps 5"
LINKS = "--hidden-dim 8 --num-epochs 12 --seeds 2 --device cpu"

Load = Callable[[str], ModuleType]


class Stopped(Exception):
    """Stands for the end of a process in the middle of its work."""


@pytest.fixture(scope="module")
def tree(load_example: Load) -> ModuleType:
    return load_example("experiments.branching_diffusion")


@pytest.fixture(scope="module")
def links(load_example: Load) -> ModuleType:
    return load_example("experiments.link_prediction")


def run(example: ModuleType, tiny: str, folder: Path, options: str = "") -> dict[str, Any]:
    return example.main([*tiny.split(), "--output-dir", str(folder), *options.split()])


def stop_after(monkeypatch: pytest.MonkeyPatch, example: ModuleType, name: str, calls: int) -> None:
    """Let a function of an example work ``calls`` times and then fail."""
    original, count = getattr(example, name), 0

    def stopping(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count > calls:
            raise Stopped
        return original(*args, **kwargs)

    monkeypatch.setattr(example, name, stopping)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("--prior riemannian --posterior riemannian --curvature 0.3", marks=pytest.mark.slow),
        "--iwae-samples 0 --gplvm-steps 0",
    ],
)
def test_branching_diffusion_runs(options: str, tree: ModuleType, tmp_path: Path) -> None:
    result = run(tree, TREE, tmp_path, options)
    files = ["embeddings.png", "euclidean.pt", "hyperbolic.pt", "loss.png", "metrics.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert json.loads((tmp_path / "metrics.json").read_text()) == result
    assert set(result) == {"options", "versions", "revision", "models"}
    assert set(result["versions"]) == {"pyro_hyperbolic", "torch", "pyro", "python"}
    assert result["options"]["depth"] == 3
    assert list(result["models"]) == ["hyperbolic", "euclidean"]
    for entry in result["models"].values():
        history = entry["history"]
        assert [len(values) for values in history.values()] == [4, 4, 4]
        assert history["train_loss"][-1] < history["train_loss"][0]
        # log p of 50 coordinates of unit variance, and of their noise alone.
        assert 50 < history["test_loss"][-1] < 90
        if "--iwae-samples 0" in options:
            assert "negative_iwae" not in entry
        else:
            assert entry["negative_iwae"] < history["test_loss"][-1] + 1
            assert 0 < entry["negative_iwae_error"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("saved", [1, 3])
def test_branching_diffusion_resumes_bit_for_bit(
    saved: int, tree: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    whole = run(tree, TREE, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, tree, "save_run", saved)
        with pytest.raises(Stopped):
            run(tree, TREE, tmp_path / "parts")
    assert (tmp_path / "parts" / "euclidean.pt").exists() == (saved > 2)
    assert not (tmp_path / "parts" / "embeddings.png").exists()
    said = refusal(tree.main, ["--output-dir", str(tmp_path / "parts")])
    assert "hyperbolic.pt exists; continue that run with --resume" in said or "euclidean.pt exists" in said
    parts = run(tree, TREE, tmp_path / "parts", "--resume --checkpoint-every 1")
    for name in tree.MODELS:
        one, other = (torch.load(tmp_path / folder / f"{name}.pt", weights_only=True) for folder in ("whole", "parts"))
        for payload in (one, other):
            del payload["state"]["options"], payload["state"]["state"]["history"]["seconds"]
        assert equal(one, other)
        assert parts["models"][name]["negative_iwae"] == whole["models"][name]["negative_iwae"]


@pytest.mark.parametrize(
    "options",
    [
        "--graph karate",
        pytest.param("--graph balanced_tree:2:4 --space h2 --num-negatives 50", marks=pytest.mark.slow),
        "--space p2 --prior riemannian --posterior riemannian --posterior-scale isotropic --validation 0 --seeds 1",
        pytest.param("--space h2,s1 --seeds 1", marks=pytest.mark.slow),
    ],
)
def test_link_prediction_runs(
    options: str, links: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(links, LINKS, tmp_path, options)
    seeds = result["options"]["seeds"]
    pages = {"latent1.html", "latent2.html"} if "," in options else {"latent.html"}
    files = {"metrics.json", "curves.png"} | {f"{name}-{seed}.pt" for name in links.MODELS for seed in range(seeds)}
    files |= pages
    if "--space h2 " in options or "--space p2" in options:
        files |= {"embeddings.png"}
    assert {path.name for path in tmp_path.iterdir()} == files
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored["runs"] == result["runs"]
    assert set(stored) == {"options", "versions", "revision", "graph", "runs", "summary"}
    assert [(run["seed"], run["model"]) for run in stored["runs"]] == [
        (s, m) for s in range(seeds) for m in links.MODELS
    ]
    for entry in stored["runs"]:
        assert entry["history"]["epoch"] == [10, 12]
        assert entry["history"]["auc"][-1] == entry["auc"]
        assert 0 <= entry["auc"] <= 1
        assert 0 < entry["ap"] <= 1
        assert ("validation" in entry) == ("--validation 0" not in options)
    mean, half = stored["summary"]["hyperbolic"]["auc"]
    scores = [entry["auc"] for entry in stored["runs"] if entry["model"] == "hyperbolic"]
    assert mean == pytest.approx(sum(scores) / seeds)
    assert (half is None) == (seeds == 1)
    printed = capsys.readouterr().out
    assert f"hyperbolic{links.percent(mean, half):>16}" in printed


@pytest.mark.parametrize("name", ["euclidean", "hyperbolic"])
def test_link_prediction_learns(name: str, links: ModuleType) -> None:
    graph = links.datasets.graph("karate")
    strangers = (graph.adjacency() + torch.eye(graph.num_nodes) == 0).nonzero()
    scores = []
    for epochs in (1, 60):
        vgae, _ = links.train(
            name, graph, 0, links.parser().parse_args(["--num-epochs", str(epochs), "--device", "cpu"])
        )
        scores.append(vgae.link_scores(graph.edges, strangers)["auc"])
    assert scores[1] > scores[0] + 0.2


@pytest.mark.slow
def test_link_prediction_repeats_no_finished_seed(
    links: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(links, LINKS, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(patch, links, "train", 3)
        with pytest.raises(Stopped):
            run(links, LINKS, tmp_path / "parts")
    assert len(json.loads((tmp_path / "parts" / "metrics.json").read_text())["runs"]) == 3
    # An unfinished split does not count, and does not disturb.
    first = run(links, LINKS, tmp_path / "parts", "--resume --seeds 1")
    assert first["summary"]["hyperbolic"]["auc"] == (whole["runs"][1]["auc"], None)

    trained = []
    original = links.train

    def recording(name: str, graph: Any, seed: int, args: Any) -> Any:
        trained.append((name, seed))
        return original(name, graph, seed, args)

    monkeypatch.setattr(links, "train", recording)
    parts = run(links, LINKS, tmp_path / "parts", "--resume")
    assert trained == [("hyperbolic", 1)]
    for one, other in zip(parts["runs"], whole["runs"], strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}
    assert parts["summary"] == whole["summary"]

    # A model that was deleted, as the error about a damaged one says, is trained again.
    trained.clear()
    (tmp_path / "parts" / "hyperbolic-0.pt").unlink()
    assert run(links, LINKS, tmp_path / "parts", "--resume")["summary"] == whole["summary"]
    assert trained == [("hyperbolic", 0)]
