"""Single cells in and out of ``AnnData``, the table that scanpy and its relatives work on.

The package ``anndata`` is an optional extra: ``pip install 'pyro_hyperbolic[anndata]'``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.trainers.rows import in_memory
from pyro_hyperbolic.distributions.base import base_distribution
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.models import ManifoldVAE
from pyro_hyperbolic.nn import OneHot
from pyro_hyperbolic.ops.nested import map_tensors

if TYPE_CHECKING:
    from anndata import AnnData


@dataclass(frozen=True)
class AnnotatedCells:
    """Counts of cells as the programs of a :class:`~pyro_hyperbolic.models.CountVAE` take them.

    Args:
        x: counts ``(N, genes)``, where they are: in memory or in a file, dense or sparse.
        covariates: values ``(N,)`` by name, or none.
        genes: names of the genes.
        batches: names of the batches, or none.
    """

    x: Any
    covariates: dict[str, Tensor] | None
    genes: tuple[str, ...]
    batches: tuple[str, ...] | None

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def inputs(self) -> dict[str, Any]:
        """What :class:`~pyro_hyperbolic.accelerate.Minibatches` takes: keywords of the programs."""
        return {"x": self.x} if self.covariates is None else {"x": self.x, "covariates": self.covariates}

    def in_order(self, batch_size: int) -> Iterator[dict[str, Any]]:
        """These keywords for some cells at a time, in the order of the table, with dense counts."""
        for start in range(0, len(self), batch_size):
            stop = min(start + batch_size, len(self))
            rows = in_memory(self.x[start:stop])
            batch: dict[str, Any] = {"x": rows.take(torch.arange(stop - start))}
            if self.covariates is not None:
                batch["covariates"] = {name: value[start:stop] for name, value in self.covariates.items()}
            yield batch


def from_anndata(
    adata: AnnData, layer: str | None = None, batch_key: str | None = None, batches: Sequence[str] | None = None
) -> AnnotatedCells:
    """The raw counts of an ``AnnData``, without a copy; of one that is backed by a file they stay there.

    Args:
        adata: cells by genes.
        layer: name of the layer that holds the counts; by default ``adata.X`` does.
        batch_key: column of ``adata.obs`` that names the batch of each cell.
        batches: names of the batches that a model knows; by default those that occur.

    Raises:
        ValueError: for a layer or column that is not there, and for a batch that is not among ``batches``.
    """
    if not all(hasattr(adata, name) for name in ("X", "layers", "obs", "var_names")):
        raise ValueError(f"adata must be an AnnData, got {adata!r:.60}; read one with anndata.read_h5ad(path).")
    if layer is not None and layer not in adata.layers:
        names = [name for name in adata.layers if name is not None]  # anndata 0.13 lists X under None
        raise _unknown("layer", layer, names, "adata has no layers; leave layer out if adata.X holds the counts")
    x = adata.X if layer is None else adata.layers[layer]
    if x is None:
        raise ValueError("adata has no X; name the layer that holds the counts.")
    genes = tuple(map(str, adata.var_names))
    if batch_key is None:
        return AnnotatedCells(x, None, genes, None)
    if batch_key not in adata.obs:
        raise _unknown("batch_key", batch_key, adata.obs, "adata.obs has no columns; leave batch_key out, or add one")
    values = [str(value) for value in adata.obs[batch_key]]
    known = OneHot(sorted(set(values)) if batches is None else batches)
    codes = known.codes(values, f"adata.obs[{batch_key!r}]")
    return AnnotatedCells(x, {"batch": codes}, genes, known.categories)


def _unknown(name: str, value: str, known: Iterable[str], none: str) -> ValueError:
    names = sorted(known)
    return ValueError(f"{name} must be one of {names}, got {value!r}." if names else f"{name}={value!r}: {none}.")


@torch.no_grad()
def to_anndata(
    adata: AnnData,
    vae: ManifoldVAE,
    cells: AnnotatedCells,
    num_neighbors: int = 15,
    batch_size: int = 1024,
    key: str = "hyperbolic",
) -> None:
    """Write the latents of a model into an ``AnnData``, and the neighbours of each cell in the latent space.

    * ``obsm["X_hyperbolic"]``: posterior means, in the coordinates of the model's manifold;
    * ``obsm["X_hyperbolic_scale"]``: posterior scales;
    * ``obsp["hyperbolic_distances"]``: distances in the space to the nearest cells;
    * ``obsp["hyperbolic_connectivities"]``: weights from 0 to 1 of these pairs, by scanpy's Gaussian kernel;
    * ``uns["hyperbolic"]``: the names of both, as scanpy keeps them. Its functions that take a ``neighbors_key``, for
      example ``scanpy.tl.leiden``, then take ``"hyperbolic"``.

    Args:
        adata: the table that ``cells`` come from.
        vae: the model.
        cells: its data.
        num_neighbors: how many cells are near; 0 writes no neighbours.
        batch_size: cells at a time.
        key: the name in the place of ``"hyperbolic"``.
    """
    if len(cells) != adata.n_obs:
        raise ValueError(f"cells must be the {adata.n_obs} cells of adata, got {len(cells)}.")
    if not 0 <= num_neighbors < len(cells):
        raise ValueError(f"num_neighbors must be at least 0 and less than {len(cells)}, got {num_neighbors}.")
    device = next(vae.parameters()).device
    points, scales = [], []
    for batch in cells.in_order(batch_size):
        batch = map_tensors(lambda t: t.to(device), batch)
        posterior = base_distribution(vae.encode(**batch))
        points.append(posterior.loc)
        scales.append(posterior.scale)
    z = torch.cat(points)
    adata.obsm[f"X_{key}"] = z.cpu().numpy()
    adata.obsm[f"X_{key}_scale"] = torch.cat(scales).cpu().numpy()
    if num_neighbors:
        _write_neighbors(adata, z, vae.manifold, num_neighbors, batch_size, key)


def _write_neighbors(adata: AnnData, z: Tensor, manifold: Manifold, count: int, batch_size: int, key: str) -> None:
    from scipy.sparse import csr_matrix

    found = [_nearest(manifold, z, start, batch_size, count) for start in range(0, len(z), batch_size)]
    distance, index = (torch.cat(parts).cpu() for parts in zip(*found, strict=True))
    starts, shape = torch.arange(len(z) + 1) * count, (len(z), len(z))

    def matrix(values: Tensor) -> csr_matrix:
        return csr_matrix((values.flatten().numpy(), index.flatten().numpy(), starts.numpy()), shape=shape)

    # The width at a cell is the root of the median of its squared distances, as in scanpy.neighbors for neighbours that
    # are given as a sparse matrix (the kernel is that of Haghverdi et al., Nature Methods, 2016). Where cells coincide
    # with their neighbours, the weight is 1.
    squares = distance.square()
    median = (squares[:, (count - 1) // 2] + squares[:, count // 2]) / 2
    width = median.clamp(min=torch.finfo(distance.dtype).tiny ** 0.5).sqrt().unsqueeze(-1)
    other = width.squeeze(-1)[index]
    total = width.square() + other.square()
    weight = matrix((2 * width * other / total).sqrt() * (-distance.square() / total).exp())
    adata.obsp[f"{key}_distances"] = matrix(distance)
    adata.obsp[f"{key}_connectivities"] = weight.maximum(weight.T).tocsr()
    adata.uns[key] = {
        "distances_key": f"{key}_distances",
        "connectivities_key": f"{key}_connectivities",
        "params": {"n_neighbors": count + 1, "method": "gauss", "metric": repr(manifold), "use_rep": f"X_{key}"},
    }


def _nearest(manifold: Manifold, z: Tensor, start: int, size: int, count: int) -> tuple[Tensor, Tensor]:
    """Distances to the nearest other points, in increasing order, and their numbers."""
    rows = z[start : start + size]
    distance = manifold.pairwise_dist(rows, z)
    own = torch.arange(start, start + len(rows), device=z.device)
    distance[torch.arange(len(rows), device=z.device), own] = torch.inf
    nearest = distance.topk(count, largest=False)
    return nearest.values, nearest.indices
