"""Myeloid progenitors of the mouse: counts of single cells."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_FILE = "paul15_240genes.npz"
TYPES = (
    "Basophils",
    "Erythrocyte",
    "GMP",
    "Megakaryocytes",
    "Monocytes",
    "Multipotent progenitors",
    "Neutrophils",
)


@dataclass(frozen=True, eq=False)
class CellCounts:
    """What :func:`paul15` returns: ``N`` cells, ``G`` genes.

    Attributes:
        counts: of transcripts, float32 ``(N, G)``, whole numbers.
        types: the type of each cell, int64 ``(N,)``, an index of ``type_names``.
        type_names: names of the types.
    """

    counts: Tensor
    types: Tensor
    type_names: tuple[str, ...]


def paul15() -> CellCounts:
    """Counts of 240 genes in 2,660 myeloid progenitors of the mouse, of 7 types; comes with the package.

    Blood cells on their way from multipotent progenitors to red cells, megakaryocytes and white cells. The genes are a
    selection of the most variable ones, without their names. There is one batch.

    The file is made from ``countMatrix`` and ``celltype`` of the R package tradeSeq (K. Van den Berge, H. Roux de
    Bezieux and others, MIT licence); the types are numbered in the alphabetical order of their names. The data are
    those of Paul et al., GEO accession GSE72857.

    References:
        F. Paul, Y. Arkin, A. Giladi et al.: Transcriptional heterogeneity and lineage commitment in myeloid
        progenitors. Cell 163, 2015.
        K. Van den Berge, H. Roux de Bezieux, K. Street et al.: Trajectory-based differential expression analysis for
        single-cell sequencing data. Nature Communications 11, 2020.

    Example:
        >>> cells = paul15()
        >>> cells.counts.shape, cells.counts.max().item()
        (torch.Size([2660, 240]), 168.0)
        >>> dict(zip(cells.type_names, cells.types.bincount().tolist(), strict=True))["Neutrophils"]
        186
    """
    file = importlib.resources.files("pyro_hyperbolic.datasets") / "data" / _FILE
    with file.open("rb") as stream, np.load(stream) as content:
        counts, types = (torch.from_numpy(content[key].astype(np.int64)) for key in ("counts", "cell_type"))
    return CellCounts(counts.float(), types, TYPES)
