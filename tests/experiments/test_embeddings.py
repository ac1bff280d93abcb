"""``experiments/embeddings.py``."""

from __future__ import annotations

import pytest
import torch
from pyro.contrib import gp

from experiments.embeddings import gplvm, principal_components
from pyro_hyperbolic.datasets import branching_diffusion


def test_gplvm_explains_the_nodes_better_than_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    original = gp.util.train
    monkeypatch.setattr(gp.util, "train", lambda *args, **kwargs: losses.extend(original(*args, **kwargs)))
    data = branching_diffusion(depth=3)
    start, observations = principal_components(data)
    assert observations.shape == (len(data.train), 2)
    # The plane of greatest variance: no other pair of directions, here two features, has more.
    assert observations.var(0).sum() > data.train.var(0).topk(2).values.sum()
    fitted = gplvm(data.nodes, start, num_steps=60, seed=0)
    assert losses[-1] < 0.9 * losses[0]
    assert fitted.shape == start.shape
    assert not torch.allclose(fitted, start / start.std(0), atol=0.1)
