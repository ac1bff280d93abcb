"""One training step of the auto-encoders: encoder 784-600-(d, 1), decoder d-600-784, batch 128, Adam, one particle.

The hyperbolic model against its Euclidean twin, and Pyro's SVI and FastSVI against PyTorch written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyro.optim
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor
from torch.nn import functional as F

from benchmarks.distributions import SPACES
from benchmarks.timing import Ratio, Settings, compare
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.infer import FastSVI
from pyro_hyperbolic.models import VAE, EuclideanVAE, HyperbolicVAE

DISTRIBUTION_BOUNDS = {"wrapped": 1.6, "riemannian": 2.0}
SVI_BOUND = 1.3
FAST_BOUND = 1.1
COMPILED_BOUND = 0.8
LEARNING_RATE = 5e-4

Step = Callable[[], object]


def training(settings: Settings) -> Iterator[Ratio]:
    batch, data_dim, hidden = (4, 8, 6) if settings.tiny else (128, 784, 600)
    x = torch.rand(batch, data_dim, generator=torch.Generator().manual_seed(0))

    def vae(distribution: str, dim: int, c: float) -> HyperbolicVAE:
        return HyperbolicVAE(PoincareBall(c), dim, data_dim, hidden, prior=distribution, posterior=distribution)

    for dim, c in SPACES[: 1 if settings.tiny else None]:
        twin = _svi(EuclideanVAE(dim, data_dim, hidden), x)
        for distribution, bound in DISTRIBUTION_BOUNDS.items():
            name = f"SVI, {distribution} VAE / Euclidean VAE, d={dim} c={c}"
            yield compare(name, _svi(vae(distribution, dim, c), x), twin, bound, settings)

    dim, c = 10, 0.2
    by_hand = _by_hand(vae("wrapped", dim, c), c, x)
    kinds: list[tuple[str, Step, float]] = [
        ("SVI", _svi(vae("wrapped", dim, c), x), SVI_BOUND),
        ("FastSVI", _fast(vae("wrapped", dim, c), x), FAST_BOUND),
        # Compiling takes a minute, for a number that means nothing at a tiny size.
        ("FastSVI(compile=True)", _fast(vae("wrapped", dim, c), x, compile=not settings.tiny), COMPILED_BOUND),
    ]
    for kind, step, bound in kinds:
        yield compare(f"{kind} / PyTorch by hand, wrapped VAE, d={dim}", step, by_hand, bound, settings)


def _svi(vae: VAE, x: Tensor) -> Step:
    return svi_step(vae.model, vae.guide, x)


def svi_step(model: Callable[..., object], guide: Callable[..., object], x: Tensor) -> Step:
    """One step of SVI as users take it."""
    svi = SVI(model, guide, pyro.optim.Adam({"lr": LEARNING_RATE}), Trace_ELBO())
    # Models that run in turns would drive each other's parameters, of the same names, out of Pyro's store.
    with pyro.get_param_store().scope() as store:
        pass

    def step() -> None:
        with pyro.get_param_store().scope(store):
            svi.step(x)

    return step


def _fast(vae: VAE, x: Tensor, compile: bool = False) -> Step:
    optim = pyro.optim.Adam({"lr": LEARNING_RATE})
    svi = FastSVI(vae.model, vae.guide, optim, Trace_ELBO(), compile=compile)
    return lambda: svi.step(x)


def _by_hand(vae: HyperbolicVAE, c: float, x: Tensor) -> Step:
    """The same networks and distributions in a loop of one's own, without validation."""
    optimiser = torch.optim.Adam(vae.parameters(), lr=LEARNING_RATE)
    ball = PoincareBall(c)
    prior = WrappedNormal(torch.zeros(vae.latent.dim), torch.ones(()), ball, validate_args=False)

    def step() -> None:
        optimiser.zero_grad()
        loc, scale = vae.encoder(x)
        q = WrappedNormal(ball.expmap0(loc), scale, ball, validate_args=False)
        z = q.rsample()
        error = F.binary_cross_entropy_with_logits(vae.decoder(z), x, reduction="sum")
        loss = error + (q.log_prob(z) - prior.log_prob(z)).sum()
        loss.backward()
        optimiser.step()

    return step
