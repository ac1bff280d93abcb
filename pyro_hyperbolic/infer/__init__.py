"""What Pyro's inference lacks for curved latents: guides, reparametrisations, a quieter IWAE gradient, checks.

The trainers, samplers and files of :mod:`pyro_hyperbolic.accelerate`, which work on any Pyro program, are names of this
package too.
"""

from pyro_hyperbolic.accelerate import (
    DistributedSVI,
    EnsembleSVI,
    FastNUTS,
    FastSVI,
    Minibatches,
    load_checkpoint,
    log_marginal_likelihood,
    process_group,
    register_check,
    register_loss,
    save_checkpoint,
)
from pyro_hyperbolic.infer.autoflow import AutoManifoldFlow
from pyro_hyperbolic.infer.autoguide import AutoWrappedNormal
from pyro_hyperbolic.infer.dreg import DReG_ELBO
from pyro_hyperbolic.infer.fit import pareto_k
from pyro_hyperbolic.infer.match import check_model_guide, check_sites, checked_points
from pyro_hyperbolic.infer.matching import MatchingHistory, flow_matching
from pyro_hyperbolic.infer.posterior import (
    Comparison,
    Evidence,
    Posterior,
    compare,
    log_evidence,
    sample_posterior,
)
from pyro_hyperbolic.infer.reparam import DrawnCurvature, ManifoldReparam, NoiseReparam, with_drawn_curvature

register_check(checked_points, check_sites)
register_loss(DReG_ELBO, separable=False)

__all__ = [
    "AutoManifoldFlow",
    "AutoWrappedNormal",
    "Comparison",
    "DReG_ELBO",
    "DistributedSVI",
    "DrawnCurvature",
    "EnsembleSVI",
    "Evidence",
    "FastNUTS",
    "FastSVI",
    "ManifoldReparam",
    "MatchingHistory",
    "Minibatches",
    "NoiseReparam",
    "Posterior",
    "check_model_guide",
    "compare",
    "flow_matching",
    "load_checkpoint",
    "log_evidence",
    "log_marginal_likelihood",
    "pareto_k",
    "process_group",
    "sample_posterior",
    "save_checkpoint",
    "with_drawn_curvature",
]
