"""Pyro programs: auto-encoders for data and for graphs, a classifier on their embeddings, networks and distances."""

from pyro_hyperbolic.models.classifier import EmbeddingClassifier
from pyro_hyperbolic.models.count_vae import CountVAE
from pyro_hyperbolic.models.distance_embedding import DistanceEmbedding
from pyro_hyperbolic.models.edges import EDGE_LIKELIHOODS
from pyro_hyperbolic.models.latent import DISTRIBUTIONS, Latent, ManifoldLatent
from pyro_hyperbolic.models.latent_space_network import LatentSpaceNetwork, Prediction
from pyro_hyperbolic.models.likelihoods import LIKELIHOODS, Likelihood
from pyro_hyperbolic.models.metrics import average_precision, roc_auc
from pyro_hyperbolic.models.network import Network
from pyro_hyperbolic.models.posterior import PosteriorDraws
from pyro_hyperbolic.models.vae import VAE, EuclideanVAE, HyperbolicVAE, ManifoldVAE
from pyro_hyperbolic.models.vgae import VGAE, EuclideanVGAE, HyperbolicVGAE, ManifoldVGAE, edge_log_odds
from pyro_hyperbolic.models.warm_up import WarmUp

__all__ = [
    "DISTRIBUTIONS",
    "EDGE_LIKELIHOODS",
    "LIKELIHOODS",
    "VAE",
    "VGAE",
    "CountVAE",
    "DistanceEmbedding",
    "EmbeddingClassifier",
    "EuclideanVAE",
    "EuclideanVGAE",
    "HyperbolicVAE",
    "HyperbolicVGAE",
    "Latent",
    "LatentSpaceNetwork",
    "Likelihood",
    "ManifoldLatent",
    "ManifoldVAE",
    "ManifoldVGAE",
    "Network",
    "PosteriorDraws",
    "Prediction",
    "WarmUp",
    "average_precision",
    "edge_log_odds",
    "roc_auc",
]
