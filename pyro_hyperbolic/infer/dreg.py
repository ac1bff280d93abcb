"""The doubly reparametrised gradient of the importance-weighted bound."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO
from pyro.infer.util import is_validation_enabled
from pyro.poutine.util import prune_subsample_sites
from pyro.util import check_if_enumerated, check_model_guide_match, check_site_shape, warn_if_nan
from torch import Tensor

from pyro_hyperbolic.accelerate.programs.checks import check_traces, checked_run
from pyro_hyperbolic.infer.draws import Draws, Program, Site, is_delta, run_again, sample_sites
from pyro_hyperbolic.ops.checks import checked_integer


class DReG_ELBO(ELBO):
    r"""The IWAE bound with the doubly reparametrised gradient of the guide.

    .. math::

        \mathcal{L}_K = \mathbb{E}\Big[\log \frac1K \sum_{k=1}^K w_k\Big], \quad
        w_k = \frac{p_\theta(x, z_k)}{q_\phi(z_k)}, \qquad
        \nabla_\phi \mathcal{L}_K = \mathbb{E}\Big[\sum_{k=1}^K
        \Big(\frac{w_k}{\sum_j w_j}\Big)^{2}
        \frac{\partial \log w_k}{\partial z_k} \frac{\partial z_k}{\partial \phi}\Big]

    (Tucker et al., *Doubly reparameterized gradient estimators for Monte Carlo objectives*, 2019). The value is that of
    ``RenyiELBO(alpha=0)`` for the same noise, and so is the gradient of the model's parameters. The gradient of
    the guide's has the same mean and less noise: its signal-to-noise ratio grows with :math:`K`, while that of the
    usual one falls (Rainforth et al., *Tighter variational bounds are not necessarily better*, 2018). With one particle
    it is the ELBO with the gradient of Roeder et al., *Sticking the landing* (2017).

    As in ``RenyiELBO``, a weight belongs to one element of the plates that all sites share: with all sites in a data
    plate the bound is the sum of the bounds of the data. The scale of subsampling in such plates
    multiplies the bound; ``RenyiELBO`` multiplies the log-weights, which makes it another bound.

    Every site of the guide must be reparametrised. The guide is run once more at its own draws, with its parameters
    held fixed; apart from its sites it must draw nothing at random (no dropout). A parameter is held fixed where
    it enters an operation of torch. To an ``autograd.Function`` of your own in the guide do not pass a parameter
    itself, whose gradient would be biased, but a view of it: ``Function.apply(p.view_as(p))``.

    :param num_particles: :math:`K`.
    :param max_plate_nesting: how deep plates are nested; found by running the programs once where it is not given.
    :param vectorize_particles: run the programs once for all particles, in a plate of their own.

    >>> import pyro
    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.models import HyperbolicVAE
    >>> vae = HyperbolicVAE(PoincareBall(1.0), 2, 5, hidden_dim=8, likelihood="normal")
    >>> loss = DReG_ELBO(num_particles=8, vectorize_particles=True, max_plate_nesting=1)
    >>> svi = pyro.infer.SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 1e-3}), loss)
    >>> svi.step(torch.randn(10, 5)) > 0
    True
    """

    def __init__(
        self,
        num_particles: int = 2,
        max_plate_nesting: float = math.inf,
        vectorize_particles: bool = False,
    ) -> None:
        super().__init__(
            num_particles=checked_integer("num_particles", num_particles, least=1),
            max_plate_nesting=max_plate_nesting,
            vectorize_particles=vectorize_particles,
        )

    @torch.no_grad()
    def loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Minus the bound, as a number."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs).item()
        warn_if_nan(loss, "loss")
        return loss

    def loss_and_grads(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> float:
        """Minus the bound, as a number; its gradients are added to those of the parameters."""
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward(retain_graph=self.retain_graph)
        value = loss.item()
        warn_if_nan(value, "loss")
        return value

    def differentiable_loss(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> Tensor:
        """Minus the bound as a 0-dim tensor, whose gradient is the estimate above."""
        particles = list(self._get_traces(model, guide, args, kwargs))
        at_once = self.vectorize_particles and self.num_particles > 1
        log_weights = particles[0].log_weight if at_once else torch.stack([p.log_weight for p in particles])
        scale = particles[0].scale
        bound = scale * (torch.logsumexp(log_weights, 0) - math.log(self.num_particles)).sum()
        if not torch.is_grad_enabled():
            return -bound
        weights = log_weights.softmax(0)
        surrogate: Any = 0.0
        for particle, weight in zip(particles, [weights] if at_once else weights, strict=True):
            surrogate = surrogate + scale * (weight * particle.log_weight_at(weight)).sum()
        return -(bound + (surrogate - surrogate.detach()))

    def _get_trace(self, model: Program, guide: Program, args: Any, kwargs: Any) -> _Particle:
        if isinstance(poutine.unwrap(guide), poutine.messenger.Messenger):
            raise ValueError("DReG_ELBO runs the guide apart from the model, which a GuideMessenger cannot do.")
        with checked_run():
            drawn = poutine.trace(guide).get_trace(*args, **kwargs)
            draws = Draws(drawn)
            # What the guide computes from its draws must be computed from the marked ones.
            given = run_again(guide, draws.marked, args, kwargs) if draws.has_delta else draws.marked
            model_trace = poutine.trace(poutine.replay(model, trace=given)).get_trace(*args, **kwargs)
        if is_validation_enabled():
            check_if_enumerated(drawn)
            check_model_guide_match(model_trace, drawn, self.max_plate_nesting)
            check_traces(model_trace, drawn)
        particle = _Particle(prune_subsample_sites(model_trace), prune_subsample_sites(drawn), draws)
        if is_validation_enabled():
            for site in particle.sites:
                check_site_shape(site, self.max_plate_nesting)
        # Without gradients only to see that the guide allows it: EnsembleSVI validates its members so.
        if torch.is_grad_enabled() or is_validation_enabled():
            particle.score(guide, given, args, kwargs)
        return particle


class _Particle:
    """One draw of the guide, or all of them at once, and its weight.

    :ivar log_weight: without a graph; right-aligned with the plates that all sites share.
    :ivar scale: what subsampling in these plates multiplies the bound by.
    """

    def __init__(self, model_trace: Any, drawn: Any, draws: Draws) -> None:
        model_trace.compute_log_prob()
        drawn.compute_log_prob()
        model_sites, guide_sites = sample_sites(model_trace), sample_sites(drawn)
        self.sites = model_sites + guide_sites
        if not self.sites:
            raise ValueError(
                "the model and the guide have no sample sites, so there is no bound; add one to the model."
            )
        shared = [_shared_plates(sites) for sites in (model_sites, guide_sites) if sites]
        self._dims = set.intersection(*map(set, shared))
        self.scale = math.prod(_full_size(shared[0][dim]) / shared[0][dim].size for dim in self._dims)
        self._log_p = self._sum(site["log_prob"] for site in model_sites)
        self._log_q: Any = None
        self._draws = draws
        log_q = self._sum(site["log_prob"] for site in guide_sites)
        self.log_weight = ((self._log_p - log_q) / self.scale).detach()

    def score(self, guide: Program, given: Any, args: Any, kwargs: Any) -> None:
        """Score the draws again by the guide with its parameters fixed."""
        self._log_q = self._sum(self._draws.log_probs(guide, args, kwargs))
        if given is not self._draws.marked:
            # A deterministic site has no noise to reparametrise: its density is a part of the model.
            given.compute_log_prob(lambda name, site: is_delta(site))
            deltas = [site["log_prob"] for site in sample_sites(given) if is_delta(site)]
            self._log_q = self._log_q + self._sum(deltas)

    def log_weight_at(self, weight: Tensor) -> Tensor:
        """``log_weight`` with its graph, where the gradients of the draws are multiplied by ``weight``."""
        self._draws.scale_gradients(weight)
        return (self._log_p - self._log_q) / self.scale

    def _sum(self, log_probs: Iterable[Tensor]) -> Any:
        """The sum over all dimensions but those of the shared plates, which keep their places."""
        total: Any = 0.0
        for log_prob in log_probs:
            rest = [dim for dim in range(-log_prob.dim(), 0) if dim not in self._dims]
            total = total + (log_prob.sum(rest, keepdim=True) if rest else log_prob)
        return total


def _shared_plates(sites: list[Site]) -> dict[int, Any]:
    """The plates that all of the sites are in, by their dimensions, of which two plates may have the same one."""
    frames = [{(f.dim, f.name): f for f in site["cond_indep_stack"] if f.vectorized} for site in sites]
    return {dim: frames[0][dim, name] for dim, name in set.intersection(*map(set, frames))}


def _full_size(frame: Any) -> int:
    return frame.full_size or frame.size
