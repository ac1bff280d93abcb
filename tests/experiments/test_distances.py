"""Maps of graphs: how stress is counted, and that fits from every kind of start end lower."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import Distances, Job
from experiments.distances import GRAPHS, DistanceCell, scores
from experiments.report.distances import PUBLISHED
from experiments.store import RunStore
from experiments.sweep import sweep
from pyro_hyperbolic import Euclidean, datasets
from pyro_hyperbolic.analysis import hyperbolic_mds
from tests.helpers import same

DISTANCES = datasets.graph_distances(datasets.graph("karate"))


def test_classical_scaling_has_the_published_stress_and_distortion() -> None:
    points = hyperbolic_mds(DISTANCES, 2, Euclidean())
    found = scores(torch.cdist(points, points).expand(3, -1, -1), DISTANCES)
    published = PUBLISHED["classical scaling"][list(GRAPHS).index("karate")]
    for ours, theirs in zip(found, published, strict=True):
        assert ours.shape == (3,)
        assert [round(value, 4) for value in ours.tolist()] == [theirs] * 3


@pytest.mark.parametrize(("seed", "layout", "lifted"), [(1, "scaling", False), (2, "tree", True)])
def test_fits_end_lower_than_they_begin(seed: int, layout: str, lifted: bool) -> None:
    experiment, cell = replace(Distances(), epochs=10), DistanceCell("karate", 1.0, "mode")
    embedding = experiment.build(cell, len(DISTANCES))
    start, _ = scores(embedding.distances(embedding.start(DISTANCES, layout=layout)), DISTANCES)
    values, found = experiment.fit(embedding, DISTANCES, Job(experiment, cell, seed))
    assert found["layout"] == layout
    assert found["lifted"] == lifted
    assert found["stress"] < start - 0.02
    same(found["stress"], scores(embedding.distances(values), DISTANCES)[0], 1e-9)


def test_a_curvature_that_is_drawn_is_reported() -> None:
    experiment, cell = replace(Distances(), epochs=5), DistanceCell("karate", None, "mode")
    _, found = experiment.fit(experiment.build(cell, len(DISTANCES)), DISTANCES, Job(experiment, cell, 0))
    assert found["c"] > 0
    flat = replace(cell, curvature=0.0)
    _, found = experiment.fit(experiment.build(flat, len(DISTANCES)), DISTANCES, Job(experiment, flat, 0))
    assert "c" not in found
    assert [flat.name, cell.name] == ["karate, flat, mode", "karate, c drawn, mode"]


def test_an_interruption_keeps_the_runs_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, store, fit = replace(Distances(), epochs=2, seeds=2), RunStore(tmp_path), Distances.fit

    def interrupted(self: Distances, *args: Any) -> Any:
        if args[2].seed == 1:
            raise KeyboardInterrupt
        return fit(self, *args)

    monkeypatch.setattr(Distances, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(experiment, store, patterns=["karate, flat, mode"])
    assert [record["seed"] for record in store.records("distances").values()] == [0]
