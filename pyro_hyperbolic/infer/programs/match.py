"""Whether the sites of a guide live where those of its model do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pyro.distributions as dist
from pyro import poutine
from pyro.infer.util import is_validation_enabled
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import constraints

from pyro_hyperbolic.distributions.base import ManifoldNormal, base_distribution
from pyro_hyperbolic.distributions.constraints import OnManifold, on_manifold
from pyro_hyperbolic.distributions.provenance import complaint_of_mark, complaint_of_observed
from pyro_hyperbolic.infer.programs.aside import aside
from pyro_hyperbolic.infer.programs.sources import Latents, Sources
from pyro_hyperbolic.ops.checks import inspectable


def check_model_guide(model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Run both programs once, and raise a ``ValueError`` where a latent of the guide is not one of the model.

    On a manifold, densities refer to the Riemannian volume. A guide that draws such a latent from a Euclidean
    distribution, or from one of another curvature, has a density with respect to another measure, and the ELBO of the
    two is not a bound. As long as the draws fall inside the ball, nothing else reports it. :class:`DReG_ELBO`,
    :class:`FastSVI` and :class:`EnsembleSVI` check this in every validated evaluation; call it once before training
    with ``pyro.infer.SVI`` and a loss of Pyro.

    So is an observed point of the model whose curvature is drawn, which needs :func:`with_drawn_curvature`. A latent
    that is missing in the guide is an error too, unless it is to be enumerated. For a point of a
    manifold the guide may use any distribution on that manifold, or ``Delta`` (as Pyro's autoguides do).

    :param model: the model.
    :param guide: the guide.
    :param args: arguments of both, like ``kwargs``.

    >>> import pyro
    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.distributions import WrappedNormal
    >>> def model():
    ...     pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, PoincareBall(1.0)))
    >>> def guide():
    ...     pyro.sample("z", dist.Normal(torch.zeros(2), 0.01).to_event(1))
    >>> check_model_guide(model, guide)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: site 'z' is a point of poincare_ball(c=1) in the model, but the guide draws it from Normal, ...
    """
    with aside(), poutine.block(), SameSpaces(), _fixed_observations():
        guide_trace, model_trace = _run(model, guide, args, kwargs)
    for name, site in list(model_trace.nodes.items()):
        if site["type"] == "sample" and site["infer"].get("enumerate") == "parallel":
            model_trace.remove_node(name)
    check_sites(model_trace, guide_trace)


def check_observations(model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Run both programs once, and raise a ``ValueError`` where the curvature of an observed point is drawn."""
    with aside(), poutine.block(), _fixed_observations():
        _run(model, guide, args, kwargs)


def observes_moving_points(trace: Any) -> bool:
    """Whether there are observed points whose curvature is a tensor, so that :func:`check_observations` is needed."""
    sites = [site for site in trace.nodes.values() if site["type"] == "sample" and site["is_observed"]]
    return any(_tensor_curvatures(site["fn"]) for site in sites)


def _tensor_curvatures(fn: Any) -> list[Tensor]:
    distribution = base_distribution(fn)
    curvatures = distribution.manifold.curvatures if isinstance(distribution, ManifoldNormal) else ()
    return [c for c in curvatures if isinstance(c, Tensor)]


def _run(model: Callable[..., Any], guide: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
    return guide_trace, poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)


@contextmanager
def _fixed_observations() -> Iterator[None]:
    """Around programs: latents are followed through all operations of torch, which needs no derivatives."""
    with Sources() as sources, _Observations(sources):
        yield


class _Observations(Latents):
    """Refuses observed points whose curvature comes from a latent."""

    def _pyro_post_sample(self, msg: Any) -> None:
        super()._pyro_post_sample(msg)
        if msg["is_observed"] and any(map(self.sources.of, _tensor_curvatures(msg["fn"]))):
            raise ValueError(f"site {msg['name']!r}: {complaint_of_observed(base_distribution(msg['fn']).manifold)}")


class SameSpaces(Messenger):
    """Around a guide and the model that is run on its draws: both must have each site on one space.

    It is checked as the model is given the value, before it computes with it: a point of another chart would be ``nan``
    or have another size.
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"] or site_is_subsample(msg):
            return
        ours = msg["fn"]
        if not msg["done"]:
            self._drawn[msg["name"]] = msg["fn"]
            # A GuideMessenger has put its own distribution in the place of the model's, which it keeps here.
            ours = msg["infer"].get("prior")
        if ours is not None and msg["name"] in self._drawn:
            theirs = base_distribution(self._drawn[msg["name"]])
            if not isinstance(theirs, dist.Delta):
                _check_supports(msg["name"], base_distribution(ours), theirs)


def same_spaces() -> AbstractContextManager[Any]:
    """:class:`SameSpaces` if Pyro validates."""
    return SameSpaces() if is_validation_enabled() else nullcontext()


def check_sites(model_trace: Any, guide_trace: Any) -> None:
    """What else :func:`check_model_guide` checks, of programs that have been run."""
    for name, site in model_trace.nodes.items():
        if site["type"] != "sample" or site["is_observed"] or site_is_subsample(site):
            continue
        if name not in guide_trace.nodes and site["infer"].get("_enumerate_dim") is not None:
            continue  # it has been summed out
        if name not in guide_trace.nodes:
            raise ValueError(
                f"site {name!r} of the model is neither observed nor in the guide; give it a site there, or sum it out"
                " with pyro.infer.TraceEnum_ELBO if it is discrete."
            )
        if isinstance(base_distribution(guide_trace.nodes[name]["fn"]), dist.Delta):
            _check_home(name, base_distribution(site["fn"]), guide_trace.nodes[name]["value"])


def _check_home(name: str, ours: Any, value: Any) -> None:
    here = manifold_of(ours)
    if here is not None and (stray := complaint_of_mark(value, here.manifold, validate=True)):
        raise ValueError(f"site {name!r}: {stray}")


def _check_supports(name: str, ours: Any, theirs: Any) -> None:
    here, there = manifold_of(ours), manifold_of(theirs)
    if here == there or (here is not None and type(here) is type(there) and not _comparable(here, there)):
        return
    if here is None:
        raise ValueError(
            f"site {name!r} is drawn from {type(ours).__name__} in the model, but the guide makes it a point of"
            f" {there!r}; use distributions of one space in both."
        )
    if there is None:
        raise ValueError(
            f"site {name!r} is a point of {here!r} in the model, but the guide draws it from {type(theirs).__name__},"
            " whose density refers to another measure; use WrappedNormal or RiemannianNormal on the model's manifold,"
            " or AutoWrappedNormal."
        )
    raise ValueError(
        f"site {name!r} is a point of {here!r} in the model and of {there!r} in the guide; use one manifold in both."
    )


def _comparable(*supports: OnManifold) -> bool:
    return inspectable(*[c for s in supports for c in s.manifold.curvatures if isinstance(c, Tensor)])


def manifold_of(distribution: Any) -> OnManifold | None:
    """Where the points of ``distribution`` lie, if they lie on a manifold."""
    distribution = base_distribution(distribution)
    if isinstance(distribution, ManifoldNormal):
        return on_manifold(distribution.manifold)
    try:
        constraint = single_value(distribution.support)
    except NotImplementedError:
        return None
    return constraint if isinstance(constraint, OnManifold) else None


def single_value(constraint: Any) -> Any:
    """The constraint inside ``to_event``."""
    while isinstance(constraint, constraints.independent):
        constraint = constraint.base_constraint
    return constraint
