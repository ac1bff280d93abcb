"""Tools for finished embeddings: points and their distances.

==============================  ============================================================
:func:`hyperbolic_mds`          points from their distances
:func:`sarkar_embedding`        a tree in the plane, with edges of one length
:func:`procrustes`              the isometry that takes one embedding to another
:class:`TangentPCA`             principal components in a tangent space
:class:`HoroPCA`                principal components along horospheres
:func:`k_means`                 clusters around Fréchet means
:func:`fit_mixture`             mixtures of Riemannian normals
:func:`knn_accuracy`            whether neighbours have the same label
:func:`lineage_correlation`     whether distances are those of a tree
:func:`batch_mixing`            whether batches can be told apart
:func:`posterior_coverage`      whether posteriors are as wide as they should be
:func:`pseudotime`              how far cells are from the root of their lineage
==============================  ============================================================
"""

from pyro_hyperbolic.analysis.clusters import Clusters, k_means
from pyro_hyperbolic.analysis.components import Projection
from pyro_hyperbolic.analysis.horo_pca import HoroPCA
from pyro_hyperbolic.analysis.mds import hyperbolic_mds
from pyro_hyperbolic.analysis.mixtures import RiemannianMixture, fit_mixture
from pyro_hyperbolic.analysis.procrustes import Alignment, procrustes
from pyro_hyperbolic.analysis.pseudotime import pseudotime
from pyro_hyperbolic.analysis.scores import batch_mixing, knn_accuracy, lineage_correlation, posterior_coverage
from pyro_hyperbolic.analysis.tangent_pca import TangentPCA
from pyro_hyperbolic.analysis.trees import sarkar_embedding

__all__ = [
    "Alignment",
    "Clusters",
    "HoroPCA",
    "Projection",
    "RiemannianMixture",
    "TangentPCA",
    "batch_mixing",
    "fit_mixture",
    "hyperbolic_mds",
    "k_means",
    "knn_accuracy",
    "lineage_correlation",
    "posterior_coverage",
    "procrustes",
    "pseudotime",
    "sarkar_embedding",
]
