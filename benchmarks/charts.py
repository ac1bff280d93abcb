"""The hyperboloid against the ball: one training step of the auto-encoder, with either distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam

from benchmarks.timing import Ratio, Settings, compare
from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.geometry import ScaledManifold
from pyro_hyperbolic.models import DISTRIBUTIONS, HyperbolicVAE

# The paper's MNIST model: batch, width, latent dimension and curvature.
BATCH, HIDDEN, DIM, CURVATURE = 128, 600, 10, 0.2
STEP_BOUND = 1.2


def charts(settings: Settings) -> Iterator[Ratio]:
    for distribution in DISTRIBUTIONS:
        hyperboloid, ball = (_step(chart, distribution, settings) for chart in (Lorentz, PoincareBall))
        yield compare(f"training step Lorentz / PoincareBall, {distribution}", hyperboloid, ball, STEP_BOUND, settings)


def _step(chart: type[ScaledManifold], distribution: str, settings: Settings) -> Callable[[], object]:
    """One step of SVI as users take it, on its own model; the two models share nothing but their names."""
    batch, hidden = (8, 16) if settings.tiny else (BATCH, HIDDEN)
    pyro.set_rng_seed(0)
    vae = HyperbolicVAE(chart(CURVATURE), DIM, (28, 28), hidden_dim=hidden, prior=distribution, posterior=distribution)
    images = torch.rand(batch, 28, 28)
    svi = SVI(vae.model, vae.guide, Adam({"lr": 5e-4}), Trace_ELBO())
    return lambda: svi.step(images)
