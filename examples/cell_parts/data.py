"""Cells from the package, from the simulator or from a file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_hyperbolic import datasets
from pyro_hyperbolic.experiments.cells import KnownCells

ROOT_TYPE = "Multipotent progenitors"  # of Paul's cells


@dataclass(frozen=True, eq=False)
class Source:
    """Cells, and how to speak of them.

    :param cells: what the models and the scores are given.
    :param title: what the labels are.
    :param shown: those that the picture shows, ``(N,)``; ``None`` without.
    :param roots: numbers of the cells that the lineage begins with; empty if unknown.
    :param adata: the cells as an ``AnnData``; ``None`` where that package is not installed.
    :param batch_key: its column of the batches; ``None`` without.
    """

    cells: KnownCells
    title: str
    shown: np.ndarray | None
    roots: Tensor
    adata: Any
    batch_key: str | None


def load(args: argparse.Namespace) -> Source:
    """The cells that ``--data`` names."""
    return SOURCES[args.data](args) if args.data in SOURCES else _h5ad(args)


def _paul15(args: argparse.Namespace) -> Source:
    found = datasets.paul15()
    names = np.array(found.type_names)
    shown = names[found.types.numpy()]
    roots = (found.types == found.type_names.index(ROOT_TYPE)).nonzero().flatten()
    return Source(
        KnownCells(found.counts, found.types), "type", shown, roots, _table(found.counts, cell_type=shown), None
    )


def _branching(args: argparse.Namespace) -> Source:
    found = datasets.branching_cells(levels=args.levels, cells=args.num_cells, batches=args.num_batches)
    batches = found.batches if args.num_batches > 1 else None
    cells = KnownCells(found.counts, found.nodes, batches, found.distances)
    roots = found.times.argsort()[: max(1, len(found.times) // 100)]
    # There are more lineages than colours: those of the second level.
    shown = found.lineages(min(2, args.levels)).numpy()
    columns = {"edge": found.nodes.numpy(), "time": found.times.numpy()}
    columns |= {} if batches is None else {"batch": batches.numpy()}
    return Source(cells, "lineage", shown, roots, _table(found.counts, **columns), None if batches is None else "batch")


def _h5ad(args: argparse.Namespace) -> Source:
    path = Path(args.data)
    if not path.exists():
        raise SystemExit(f"--data must be {' or '.join(SOURCES)} or a file, got {args.data!r}, which is not there.")
    try:
        import anndata
    except ImportError as error:
        raise SystemExit(f"--data {path} needs the package anndata: pip install anndata") from error
    adata = anndata.read_h5ad(path)
    annotated = datasets.from_anndata(adata, args.layer, args.batch_key)
    counts = torch.cat([batch["x"] for batch in annotated.in_order(1024)]).float()
    batches = None if annotated.covariates is None else annotated.covariates["batch"]
    labels, shown, roots = None, None, torch.empty(0, dtype=torch.int64)
    if args.label_key is not None:
        if args.label_key not in adata.obs:
            raise SystemExit(f"--label-key must be one of {sorted(adata.obs)}, got {args.label_key!r}.")
        shown = np.array([str(value) for value in adata.obs[args.label_key]])
        known, codes = np.unique(shown, return_inverse=True)
        labels = torch.from_numpy(codes.astype(np.int64))
        if args.root_label is not None:
            roots = torch.from_numpy(shown == args.root_label).nonzero().flatten()
            if len(roots) == 0:
                raise SystemExit(f"--root-label must be one of {known.tolist()}, got {args.root_label!r}.")
    return Source(KnownCells(counts, labels, batches), "type", shown, roots, adata, args.batch_key)


def _table(counts: Tensor, **columns: np.ndarray) -> Any:
    """An ``AnnData`` of the cells; ``None`` where that package is not installed."""
    try:
        import anndata
    except ImportError:
        return None
    return anndata.AnnData(counts.numpy(), obs=columns)


SOURCES: dict[str, Callable[[argparse.Namespace], Source]] = {"paul15": _paul15, "branching": _branching}
