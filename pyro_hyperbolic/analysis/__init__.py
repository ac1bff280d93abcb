"""What works on points and distances that are already there."""

from pyro_hyperbolic.analysis.clusters import Clusters, k_means
from pyro_hyperbolic.analysis.mds import hyperbolic_mds
from pyro_hyperbolic.analysis.mixtures import RiemannianMixture, fit_mixture

__all__ = ["Clusters", "RiemannianMixture", "fit_mixture", "hyperbolic_mds", "k_means"]
