"""Programs whose curvature is a latent."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any

from pyro import poutine
from pyro.infer.reparam.strategies import Strategy
from torch import Tensor

from pyro_hyperbolic.accelerate.programs.sources import Latents, Sources
from pyro_hyperbolic.distributions.base import base_distribution
from pyro_hyperbolic.infer.match import manifold_of
from pyro_hyperbolic.infer.reparam.manifold_reparam import ManifoldReparam
from pyro_hyperbolic.infer.reparam.noise_reparam import NoiseReparam, is_made_of_noise
from pyro_hyperbolic.infer.reparam.point_reparam import PointReparam


class DrawnCurvature(Strategy):
    """The strategy of :func:`with_drawn_curvature`, for use with ``pyro.poutine.reparam``.

    The strategy alone does not see what a curvature is computed from, and takes every tensor for a drawn one. As a
    decorator it is :func:`with_drawn_curvature`.

    :param centered: as there.

    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.distributions import WrappedNormal
    >>> @pyro.poutine.reparam(config=DrawnCurvature())
    ... def model():
    ...     c = pyro.sample("c", dist.LogNormal(0.0, 0.5))
    ...     return pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, PoincareBall(c)))
    >>> pyro.poutine.trace(model).get_trace().stochastic_nodes
    ['c', 'z_coords']
    """

    def __init__(self, centered: bool | Collection[str] = True, _sources: Sources | None = None) -> None:
        super().__init__()
        if not isinstance(centered, (bool, Collection)) or isinstance(centered, str):
            raise ValueError(
                f"centered must be True, False or a collection of names of sites, got {centered!r}; for one site use"
                f" [{centered!r}]."
            )
        self.centered = centered
        self._sources = _sources

    def __call__(self, msg_or_fn: Any) -> Any:
        if not isinstance(msg_or_fn, dict):
            return _Model(msg_or_fn, self.centered)
        # Not what Pyro remembers of an earlier run, in which the curvature may have been a number.
        return self.configure(msg_or_fn)

    def configure(self, msg: dict[str, Any]) -> PointReparam | None:
        distribution = base_distribution(msg["fn"])
        support = manifold_of(distribution)
        curvatures = [] if support is None else [c for c in support.manifold.curvatures if isinstance(c, Tensor)]
        if self._sources is not None:
            curvatures = [c for c in curvatures if self._sources.of(c)]
        if not curvatures:
            return None
        centered = self.centered if isinstance(self.centered, bool) else msg["name"] in self.centered
        if centered or msg["is_observed"] or not is_made_of_noise(distribution):
            return ManifoldReparam()
        return NoiseReparam()


def with_drawn_curvature(
    model: Callable[..., Any] | None = None, *, centered: bool | Collection[str] = True
) -> Callable[..., Any]:
    """The same program, right for every algorithm of Pyro if its curvature is a latent.

    Densities on a manifold refer to its volume. If the curvature moves, so does that volume, and so do the points that
    a value stands for. Each latent point whose curvature depends on another latent is therefore drawn by
    coordinates that know nothing of the curvature: :class:`ManifoldReparam` (``centered=True``) or, with
    ``centered=False``, :class:`NoiseReparam`. Points of a fixed curvature, or of one that is a parameter, stay as they
    are. Which is which is found in each run, by following the latents through the operations of torch; a number that
    the program takes out of a latent (``item``) is not followed.

    Samples then have the sites ``"z_coords"`` or ``"z_base"`` in place of ``"z"``; the points come with
    ``Predictive(model, samples, return_sites=["z"])``. An observed point of the ball is scored by the
    density of its coordinates (:class:`ManifoldReparam`).

    A wild step of a chain may end at a curvature that is not valid, ``inf`` or 0. Pyro's ``MCMC`` runs without
    validation, so the step is rejected and raises no error.

    :param model: the program: a function, a method or a module. Without it the result is a decorator.
    :param centered: whether points are drawn by their normal coordinates, or a collection of the names of those that
        are. Centred sites suit points about which the data say much, the others points about which they say little.

    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> from pyro.infer import MCMC, NUTS
    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.distributions import WrappedNormal
    >>> def model(distances):
    ...     c = pyro.sample("c", dist.LogNormal(0.0, 0.5))
    ...     ball = PoincareBall(c)
    ...     with pyro.plate("points", 3):
    ...         z = pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, ball))
    ...     pyro.sample("x", dist.Normal(ball.dist(z, z.roll(1, 0)), 0.1).to_event(1), obs=distances)
    >>> model = with_drawn_curvature(model)
    >>> mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=3, warmup_steps=3, disable_progbar=True)
    >>> mcmc.run(torch.tensor([1.0, 1.2, 0.7]))
    >>> sorted(mcmc.get_samples())
    ['c', 'z_coords']
    """
    if model is None:
        return functools.partial(with_drawn_curvature, centered=centered)
    if not callable(model):
        raise ValueError(f"model must be a Pyro program, got {model!r}; pass the function, method or module itself.")
    return _Model(model, centered)


class _Model:
    """A program in which curvatures may be drawn; as an attribute of a class it is a method."""

    def __init__(self, program: Callable[..., Any], centered: bool | Collection[str]) -> None:
        self.program = program
        self.centered = DrawnCurvature(centered).centered
        functools.update_wrapper(self, program, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # What a decorator has made stands under the name of its program, where processes that are started anew find it.
        found: Any = sys.modules.get(self.__module__)
        for name in getattr(self, "__qualname__", "").split("."):
            found = getattr(found, name, None)
        return self.__qualname__ if found is self else super().__reduce_ex__(protocol)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Found anew in each run: arguments and handlers decide which sites are latents.
        with Sources() as sources, Latents(sources):
            return poutine.reparam(self.program, DrawnCurvature(self.centered, sources))(*args, **kwargs)
