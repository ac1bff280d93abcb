"""What Pyro's inference lacks: fast SVI and NUTS, a quieter IWAE gradient, guides for points, and evidence."""

from pyro_hyperbolic.infer.autoguide import AutoWrappedNormal
from pyro_hyperbolic.infer.bounds.dreg import DReG_ELBO
from pyro_hyperbolic.infer.bounds.marginal import log_marginal_likelihood
from pyro_hyperbolic.infer.checkpoint import load_checkpoint, save_checkpoint
from pyro_hyperbolic.infer.fast_nuts import FastNUTS
from pyro_hyperbolic.infer.processes.distributed import DistributedSVI
from pyro_hyperbolic.infer.processes.group import Place, on_termination, process_group, torchrun_place
from pyro_hyperbolic.infer.programs.match import check_model_guide
from pyro_hyperbolic.infer.reparam import (
    DrawnCurvature,
    ManifoldReparam,
    RiemannianNormalReparam,
    WrappedNormalReparam,
    with_drawn_curvature,
)
from pyro_hyperbolic.infer.trainers.ensemble import EnsembleSVI
from pyro_hyperbolic.infer.trainers.fast_svi import FastSVI
from pyro_hyperbolic.infer.trainers.minibatch import Minibatches

__all__ = [
    "AutoWrappedNormal",
    "DReG_ELBO",
    "DistributedSVI",
    "DrawnCurvature",
    "EnsembleSVI",
    "FastNUTS",
    "FastSVI",
    "ManifoldReparam",
    "Minibatches",
    "Place",
    "RiemannianNormalReparam",
    "WrappedNormalReparam",
    "check_model_guide",
    "load_checkpoint",
    "log_marginal_likelihood",
    "on_termination",
    "process_group",
    "save_checkpoint",
    "torchrun_place",
    "with_drawn_curvature",
]
