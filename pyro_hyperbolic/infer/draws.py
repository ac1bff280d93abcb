"""The draws of a guide, apart from the parameters that they were drawn with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask, sum_rightmost
from pyro.infer.util import is_validation_enabled
from pyro.poutine.util import prune_subsample_sites, site_is_subsample
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_hyperbolic.distributions import ExpMapTransform
from pyro_hyperbolic.distributions.base import ManifoldDistribution, base_distribution
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.infer.match import manifold_of
from pyro_hyperbolic.ops.nested import map_tensors
from pyro_hyperbolic.private import mask_of

Program = Callable[..., Any]
Site = dict[str, Any]


class Draws:
    """Draws as variables of their own: the same numbers, through which all gradients of the draws pass.

    A weight is a function of the draws and of parameters. The doubly reparametrised gradient treats the two
    differently, so that a draw must be told from the parameters. On a manifold of fixed curvature a draw is a point.
    With a learned curvature the points themselves move, and so does the volume that densities refer to: then the draw
    is the vector of normal coordinates at the origin, with its Lebesgue measure.

    :ivar marked: the guide's trace with these draws, without what it computes from them.
    :ivar has_delta: whether it computes sites from them.
    """

    def __init__(self, drawn: Any) -> None:
        self.marked, self._scored = drawn.copy(), drawn.copy()
        self.has_delta = False
        self._variables: list[tuple[Tensor, int]] = []
        self._motions: dict[str, tuple[Tensor, Tensor]] = {}
        self._volumes: list[Tensor] = []
        for site in sample_sites(drawn):
            if is_delta(site):
                self.has_delta = True
                self.marked.remove_node(site["name"])
                self._scored.remove_node(site["name"])
            elif not site["is_observed"] and not site_is_subsample(site):
                _check_reparametrised(site)
                if site["value"].requires_grad:
                    self._mark(site)

    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply the gradients of the draws by ``factor``, which is right-aligned with their batch dimensions."""
        for variable, event_dim in self._variables:
            spare = max(0, factor.dim() - variable.dim() + event_dim)  # all of size 1: it is in no such plate
            own = factor.reshape(factor.shape[spare:] + (1,) * event_dim)
            variable.register_hook(lambda grad, own=own: grad * own.to(grad.dtype))

    def log_probs(self, guide: Program, args: Any, kwargs: Any) -> list[Tensor]:
        """The log-densities of the draws by the guide with its parameters fixed."""
        before = _random_states() if is_validation_enabled() else []
        with _ParametersFixed():
            scored = run_again(guide, self._scored, *map_tensors(Tensor.detach, (args, kwargs)))
            for name, (v, motion) in self._motions.items():
                site = scored.nodes[name]
                base_distribution(site["fn"]).adopt(site["value"], v, motion)
            scored.compute_log_prob(lambda name, site: not is_delta(site))
        if before and not all(map(torch.equal, before, _random_states())):
            raise ValueError(
                "the guide draws random numbers apart from its sample sites, so that it has another density when it is"
                " run again; switch dropout off in the guide (eval()), or use RenyiELBO."
            )
        sites = [site for site in sample_sites(prune_subsample_sites(scored)) if not is_delta(site)]
        return [*[site["log_prob"] for site in sites], *self._volumes]

    def _mark(self, site: Site) -> None:
        point = manifold_of(site["fn"])
        if point is not None and point.manifold.moves:
            self._mark_coords(site, point.manifold)
            return
        value = site["value"].view_as(site["value"])
        self._replace(site, value, value)
        distribution = base_distribution(site["fn"])
        if isinstance(distribution, ManifoldDistribution) and distribution.drew(site["value"]):
            self._motions[site["name"]] = distribution.draw_motion()
            self._variables.append((self._motions[site["name"]][1], site["fn"].event_dim))
        self._variables.append((value, site["fn"].event_dim))

    def _mark_coords(self, site: Site, moving: Manifold) -> None:
        fixed = moving.detach()
        m = moving.to_normal_coords(None, site["value"])
        m = m.view_as(m)
        maps = [ExpMapTransform(manifold) for manifold in (moving, fixed)]
        self._replace(site, *[_exactly(site["value"], to_point(m)) for to_point in maps])
        volumes = [to_point.log_abs_det_jacobian(m, m) for to_point in maps]
        volume = scale_and_mask(_as_density(site["fn"], volumes[1] - volumes[0]), site["scale"], site["mask"])
        self._volumes.append(volume)
        self._variables.append((m, site["fn"].event_dim))

    def _replace(self, site: Site, marked: Tensor, scored: Tensor) -> None:
        self.marked.nodes[site["name"]] = {**site, "value": marked}
        self._scored.nodes[site["name"]] = {**site, "value": scored}


def run_again(guide: Program, trace: Any, args: Any, kwargs: Any) -> Any:
    """The trace of the guide at the draws of ``trace``."""
    return poutine.trace(poutine.replay(guide, trace=trace)).get_trace(*args, **kwargs)


def sample_sites(trace: Any) -> list[Site]:
    """The sites that have a density."""
    return [s for s in trace.nodes.values() if s["type"] == "sample" and not s["infer"].get("_deterministic")]


def is_delta(site: Site) -> bool:
    """Whether the site is not a draw, but a function of draws and parameters."""
    return isinstance(base_distribution(site["fn"]), dist.Delta)


class _ParametersFixed(TorchFunctionMode):
    """Every leaf of the graph, hence every parameter, enters an operation without its gradient.

    Torch does not show it ``autograd.Function.apply``: a leaf that is an argument there keeps its gradient.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func != _REQUIRES_GRAD:  # by which Pyro tells a parameter
            args, kwargs = map_tensors(_fixed, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


_REQUIRES_GRAD = Tensor.requires_grad.__get__  # type: ignore[attr-defined]


def _fixed(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.requires_grad and tensor.is_leaf else tensor


def _exactly(value: Tensor, other: Tensor) -> Tensor:
    """``value`` with the graph of ``other``, which is the same number but for rounding."""
    return value.detach() + (other - other.detach())


def _as_density(fn: Any, log_density: Tensor) -> Tensor:
    """What ``fn`` makes of the log-density of the distribution in it: ``to_event`` sums it and ``mask`` masks it."""
    if isinstance(fn, dist.Independent):
        return sum_rightmost(_as_density(fn.base_dist, log_density), fn.reinterpreted_batch_ndims)
    if isinstance(fn, dist.MaskedDistribution):
        return scale_and_mask(_as_density(fn.base_dist, log_density), mask=mask_of(fn))
    return log_density


def _random_states() -> list[Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.default_generators[torch.cuda.current_device()].get_state())
    return states


def _check_reparametrised(site: Site) -> None:
    if not getattr(site["fn"], "has_rsample", False):
        kind = type(base_distribution(site["fn"])).__name__
        raise ValueError(
            f"site {site['name']!r} is drawn from {kind}, which is not reparametrised:"
            " DReG_ELBO differentiates the draws; use a reparametrised distribution, or pyro.infer.TraceGraph_ELBO."
        )
