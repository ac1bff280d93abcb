"""Cells from ``AnnData`` and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import scipy.sparse
import torch
from pyro.infer import Trace_ELBO

from pyro_hyperbolic import datasets
from pyro_hyperbolic.infer import FastSVI, Minibatches
from pyro_hyperbolic.models import CountVAE, EuclideanVAE
from tests.helpers import same

anndata = pytest.importorskip("anndata")
# A warning of pandas that anndata raises when it writes a file.
pytestmark = pytest.mark.filterwarnings("ignore:.*infer_string")

SIZE, GENES = 60, 8


def table(kind: Any = scipy.sparse.csr_matrix, layer: str | None = None) -> Any:
    counts = np.random.default_rng(0).poisson(2.0, (SIZE, GENES)).astype(np.float32)
    counts[:, 0] += 1  # no cell is without counts
    matrix = kind(counts)
    if layer is None:
        adata = anndata.AnnData(matrix)
    else:
        adata = anndata.AnnData(layers={layer: matrix}, shape=(SIZE, GENES))
    adata.obs["site"] = [f"site{i % 3}" for i in range(SIZE)]
    return adata


def backed(tmp_path: Path) -> Any:
    table().write_h5ad(tmp_path / "cells.h5ad")
    return anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")


TABLES = {
    "dense": (lambda _: table(np.array), None),
    "sparse": (lambda _: table(), None),
    "by columns": (lambda _: table(scipy.sparse.csc_matrix), None),
    "layer": (lambda _: table(layer="raw"), "raw"),
    "file": (backed, None),
}


def train(cells: Any, space: str = "h2") -> CountVAE:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    vae = CountVAE(space, 2, len(cells.genes), hidden_dim=8, batches=cells.batches, target_sum=20.0)
    svi = FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for epoch in range(2):
        svi.run(Minibatches(cells.inputs, 16, block_size=8).epoch(epoch))
    return vae


@pytest.mark.parametrize("name", TABLES)
def test_from_every_table_to_its_latents(name: str, tmp_path: Path) -> None:
    make, layer = TABLES[name]
    adata = make(tmp_path)
    cells = datasets.from_anndata(adata, layer, batch_key="site")
    assert len(cells) == SIZE
    assert cells.genes == tuple(adata.var_names)
    assert cells.batches == ("site0", "site1", "site2")
    assert cells.covariates["batch"].tolist() == [i % 3 for i in range(SIZE)]
    vae = train(cells)
    datasets.to_anndata(adata, vae, cells, num_neighbors=5, batch_size=7)
    expected = vae.encode(torch.tensor(table(np.array).X), covariates=cells.covariates)
    same(adata.obsm["X_hyperbolic"], expected.mean, 1e-5)
    same(adata.obsm["X_hyperbolic_scale"], expected.scale, 1e-5)
    assert adata.obsm["X_hyperbolic_scale"].shape == (SIZE, 1)

    distances = vae.manifold.pairwise_dist(expected.mean, expected.mean).detach().numpy()
    np.fill_diagonal(distances, np.inf)
    found = adata.obsp["hyperbolic_distances"]
    assert np.array_equal(np.diff(found.indptr), np.full(SIZE, 5))
    for i in range(SIZE):
        row = found[i].toarray().ravel()
        assert set(np.flatnonzero(row)) == set(np.argsort(distances[i])[:5])
        assert row.max() == pytest.approx(np.sort(distances[i])[4], rel=1e-4)
    weights = adata.obsp["hyperbolic_connectivities"]
    assert abs(weights - weights.T).max() == 0
    assert weights.data.min() > 0
    i, j = 3, int(np.argmin(distances[3]))
    variance = [np.median(np.sort(distances[k])[:5] ** 2) for k in (i, j)]
    expected = np.sqrt(2 * np.sqrt(np.prod(variance)) / sum(variance)) * np.exp(-(distances[i, j] ** 2) / sum(variance))
    assert weights[i, j] == pytest.approx(expected, rel=1e-4)
    assert weights.data.max() <= 1
    assert adata.uns["hyperbolic"]["distances_key"] in adata.obsp
    assert adata.uns["hyperbolic"]["connectivities_key"] in adata.obsp


def test_results_survive_the_file(tmp_path: Path) -> None:
    adata = table()
    cells = datasets.from_anndata(adata)
    datasets.to_anndata(adata, train(cells, "s1,e1"), cells, key="curved")
    adata.write_h5ad(tmp_path / "results.h5ad")
    again = anndata.read_h5ad(tmp_path / "results.h5ad")
    assert np.array_equal(again.obsm["X_curved"], adata.obsm["X_curved"])
    assert (again.obsp["curved_distances"] != adata.obsp["curved_distances"]).nnz == 0
    assert again.uns["curved"]["params"]["n_neighbors"] == 16


def test_flat_space_without_batches_and_neighbours() -> None:
    adata = table()
    cells = datasets.from_anndata(adata)
    assert cells.inputs.keys() == {"x"}
    vae = EuclideanVAE(2, GENES, hidden_dim=4, likelihood="poisson")
    datasets.to_anndata(adata, vae, cells, num_neighbors=0)
    same(adata.obsm["X_hyperbolic"], vae.encode(torch.tensor(adata.X.toarray())).mean, 1e-5)
    assert "hyperbolic_distances" not in adata.obsp


def without_columns(adata: Any) -> Any:
    adata.obs = adata.obs[[]]
    return adata


ERRORS = {
    "layer": (lambda adata: datasets.from_anndata(adata, "raw"), "layer='raw': adata has no layers; leave"),
    "another layer": (
        lambda _: datasets.from_anndata(table(layer="raw"), "q"),
        r"layer must be one of \['raw'\], got 'q'",
    ),
    "no X": (lambda _: datasets.from_anndata(table(layer="raw")), "adata has no X; name the layer"),
    "column": (lambda adata: datasets.from_anndata(adata, batch_key="day"), r"batch_key must be one of \['site'\]"),
    "no columns": (
        lambda adata: datasets.from_anndata(without_columns(adata), batch_key="q"),
        "batch_key='q': adata.obs has no columns; leave batch_key out",
    ),
    "unknown batch": (
        lambda adata: datasets.from_anndata(adata, batch_key="site", batches=["site0", "site1"]),
        r"adata.obs\['site'\] has unknown categories \['site2'\]; known are \['site0', 'site1'\]",
    ),
    "no table": (lambda adata: datasets.from_anndata(3), "adata must be an AnnData, got 3; read one with"),
    "other cells": (
        lambda adata: datasets.to_anndata(adata[:5], None, datasets.from_anndata(adata)),
        "cells must be the 5 cells of adata, got 60",
    ),
    "neighbours": (
        lambda adata: datasets.to_anndata(adata, None, datasets.from_anndata(adata), num_neighbors=60),
        "num_neighbors must be at least 0 and less than 60, got 60",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    make, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        make(table())
