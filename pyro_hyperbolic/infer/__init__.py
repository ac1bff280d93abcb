"""What Pyro's inference lacks: fast and ensemble SVI, evaluation of the marginal likelihood, checkpoints."""

from pyro_hyperbolic.infer.checkpoint import load_checkpoint, save_checkpoint, save_json
from pyro_hyperbolic.infer.ensemble import EnsembleSVI
from pyro_hyperbolic.infer.fast_svi import FastSVI
from pyro_hyperbolic.infer.marginal import log_marginal_likelihood
from pyro_hyperbolic.infer.minibatch import Minibatches

__all__ = [
    "EnsembleSVI",
    "FastSVI",
    "Minibatches",
    "load_checkpoint",
    "log_marginal_likelihood",
    "save_checkpoint",
    "save_json",
]
