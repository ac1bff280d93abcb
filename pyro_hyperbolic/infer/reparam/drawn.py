"""Programs whose curvature is a latent."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

from pyro import poutine
from pyro.infer.reparam.strategies import Strategy
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.distributions.base import base_distribution
from pyro_hyperbolic.infer.match import manifold_of
from pyro_hyperbolic.infer.reparam.coords import ManifoldReparam
from pyro_hyperbolic.infer.reparam.follow import Follow
from pyro_hyperbolic.infer.reparam.noise import RiemannianNormalReparam, WrappedNormalReparam
from pyro_hyperbolic.infer.reparam.site import PointReparam

_NONCENTRED: dict[type, type[PointReparam]] = {
    WrappedNormal: WrappedNormalReparam,
    RiemannianNormal: RiemannianNormalReparam,
}


class DrawnCurvature(Strategy):
    """The strategy of :func:`with_drawn_curvature`, for use with ``pyro.poutine.reparam``.

    The strategy alone does not see what a curvature is computed from, and takes every tensor for a drawn one. As a
    decorator it is :func:`with_drawn_curvature`.

    :param centered: as there.

    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> from pyro_hyperbolic import PoincareBall
    >>> @pyro.poutine.reparam(config=DrawnCurvature())
    ... def model():
    ...     c = pyro.sample("c", dist.LogNormal(0.0, 0.5))
    ...     return pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, PoincareBall(c)))
    >>> pyro.poutine.trace(model).get_trace().stochastic_nodes
    ['c', 'z_coords']
    """

    def __init__(self, centered: bool | Collection[str] = True) -> None:
        super().__init__()
        if not isinstance(centered, (bool, Collection)) or isinstance(centered, str):
            raise ValueError(
                f"centered must be True, False or a collection of names of sites, got {centered!r}; for one site use"
                f" [{centered!r}]."
            )
        self.centered = centered
        self.follow: Follow | None = None

    def __call__(self, msg_or_fn: Any) -> Any:
        if not isinstance(msg_or_fn, dict):
            return _Model(msg_or_fn, self)
        reparam = super().__call__(msg_or_fn)
        # The program may observe in one run what it draws in another.
        return ManifoldReparam() if reparam is not None and msg_or_fn["is_observed"] else reparam

    def configure(self, msg: dict[str, Any]) -> PointReparam | None:
        distribution = base_distribution(msg["fn"])
        support = manifold_of(distribution)
        curvatures = [] if support is None else [c for c in support.manifold.curvatures if isinstance(c, Tensor)]
        if self.follow is not None:
            curvatures = [c for c in curvatures if self.follow.sources(c)]
        if not curvatures:
            return None
        centered = self.centered if isinstance(self.centered, bool) else msg["name"] in self.centered
        if centered or type(distribution) not in _NONCENTRED:
            return ManifoldReparam()
        return _NONCENTRED[type(distribution)]()


def with_drawn_curvature(
    model: Callable[..., Any] | None = None, *, centered: bool | Collection[str] = True
) -> Callable[..., Any]:
    """The same program, right for every algorithm of Pyro if its curvature is a latent.

    Densities on a manifold refer to its volume. If the curvature moves, so does that volume, and so do the points that
    a value stands for. Each latent point whose curvature depends on another latent is therefore drawn by
    coordinates that know nothing of the curvature: :class:`ManifoldReparam` (``centered=True``) or, with
    ``centered=False``, :class:`WrappedNormalReparam` and :class:`RiemannianNormalReparam`. Points of a fixed curvature,
    or of one that is a parameter, stay as they are. Which is which is found in the first run, by following
    the latents through the operations of torch.

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
    return _Model(model, DrawnCurvature(centered))


class _Model:
    """A program under a strategy; as an attribute of a class it is a method, with a strategy for each instance."""

    def __init__(self, program: Callable[..., Any], strategy: DrawnCurvature) -> None:
        self.program = program
        self.strategy = strategy
        self._known = False
        self._bound: WeakKeyDictionary[Any, _Model] = WeakKeyDictionary()
        functools.update_wrapper(self, program, updated=())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        if instance not in self._bound:
            # A method would keep its instance alive; the function and a weak reference to it do not.
            self._bound[instance] = _Model(self.program, DrawnCurvature(self.strategy.centered))
        return functools.partial(self._bound[instance], instance)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # What a decorator has made stands under the name of its program, where processes that are started anew find it.
        found: Any = sys.modules.get(self.__module__)
        for name in getattr(self, "__qualname__", "").split("."):
            found = getattr(found, name, None)
        if found is self:
            return self.__qualname__
        if isinstance(found, _Model) and found.program is self.program:  # this one is of an instance
            return _of_an_instance, (found, self.strategy, self._known)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bound": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _bound=WeakKeyDictionary())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        program = poutine.reparam(self.program, self.strategy)
        if self._known:
            return program(*args, **kwargs)
        with Follow() as follow, _Marks(follow):
            self.strategy.follow = follow
            try:
                result = program(*args, **kwargs)
            finally:
                self.strategy.follow = None
        self._known = True
        return result


def _of_an_instance(model: _Model, strategy: DrawnCurvature, known: bool) -> _Model:
    result = _Model(model.program, strategy)
    result._known = known
    return result


class _Marks(Messenger):
    """Tells where the values of latents come from."""

    def __init__(self, follow: Follow) -> None:
        super().__init__()
        self._follow = follow
        self._latents: set[str] = set()

    def _pyro_sample(self, msg: Any) -> None:
        # Asked before a handler outside of the model, such as that of HMC, gives the value.
        if not msg["is_observed"] and not site_is_subsample(msg):
            self._latents.add(msg["name"])

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"] in self._latents:
            self._follow.mark(msg["value"], msg["name"])
