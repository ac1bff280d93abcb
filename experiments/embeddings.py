"""Classical embeddings in the plane, to set beside the auto-encoders'."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro.contrib import gp
from pyro.infer import Trace_ELBO
from torch import Tensor

from pyro_hyperbolic import datasets


def principal_components(data: datasets.BranchingDiffusion) -> tuple[Tensor, Tensor]:
    """Nodes and training observations in the plane in which the observations vary most."""
    centre = data.train.mean(0)
    plane = torch.linalg.svd(data.train - centre, full_matrices=False)[2][:2].T
    return (data.nodes - centre) @ plane, (data.train - centre) @ plane


def gplvm(nodes: Tensor, start: Tensor, num_steps: int, seed: int) -> Tensor:
    """The most probable latents of a Gaussian process latent variable model with an RBF kernel, ``(N, 2)``.

    N. Lawrence, Probabilistic non-linear principal component analysis, 2005.

    :param nodes: what it explains, ``(N, D)``; all features share one kernel.
    :param start: latents to start from.
    :param num_steps: of Adam.
    :param seed: of Pyro's random state, which is set, and whose parameters are cleared.
    """
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    start = (start - start.mean(0)) / start.std(0)
    kernel = gp.kernels.RBF(input_dim=2, lengthscale=torch.ones(2))
    regression = gp.models.GPRegression(start, nodes.T, kernel, noise=torch.tensor(0.1), jitter=1e-4)
    model = gp.models.GPLVM(regression)
    # Pyro's default is a variational posterior of the latents; the paper's baseline is a point estimate.
    model.autoguide("X", dist.Delta)
    model.X_map.data = start.clone()
    gp.util.train(model, loss_fn=Trace_ELBO().differentiable_loss, num_steps=num_steps)
    return model.X_map.detach()
