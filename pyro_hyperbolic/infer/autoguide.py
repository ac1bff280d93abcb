"""An automatic guide of wrapped normals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal, init_to_feasible
from pyro.infer.autoguide.utils import deep_setattr
from pyro.nn import PyroParam
from pyro.poutine.runtime import NonlocalExit
from torch import Tensor
from torch.distributions import biject_to, constraints
from torch.distributions.constraints import Constraint

from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.distributions.constraints import OnManifold
from pyro_hyperbolic.infer.match import single_value


class AutoWrappedNormal(AutoNormal):
    r"""A mean-field guide: wrapped normals for points of a manifold, and what ``AutoNormal`` has for all other latents.

    A latent whose support is a manifold (of any batch shape, also inside ``to_event``) is drawn from

    .. math:: q(z) = \mathcal{N}(z \mid \exp_0(\ell/2), \operatorname{diag}(\sigma^2))

    with learned normal coordinates :math:`\ell` of the mean, ``guide.locs.<site>``, and learned :math:`\sigma`,
    ``guide.scales.<site>``, both ``(..., d)``. ``AutoNormal`` puts a Gaussian on the normal coordinates at the
    origin instead, whose image is stretched by :math:`\sinh(\sqrt c\,r)/(\sqrt c\,r)` across the radius where it is
    far out; this guide is of the same shape everywhere. Any other continuous latent is the image of a
    Gaussian under ``biject_to`` of its support. Every site has its distribution under its own name, which
    ``TraceMeanField_ELBO`` compares with the prior's where there is a closed form.

    A curvature that the model learns or draws is read from the model at every call, for which it is run up to the site
    in question. (Pyro's guides keep the support of each latent as it was when they first ran.) In an ``AutoGuideList``
    a curvature that is drawn must be a latent of the same ``AutoWrappedNormal`` as the points.

    :param model: the model.
    :param init_loc_fn: one of Pyro's strategies (``init_to_feasible``, ``init_to_value``, ...).
    :param init_scale: :math:`\sigma` to start from.
    :param create_plates: as in Pyro's guides: a function of the model's arguments that returns the plates to subsample.

    >>> from pyro_hyperbolic import PoincareBall
    >>> ball = PoincareBall(1.0)
    >>> def model(x):
    ...     with pyro.plate("data", len(x)):
    ...         z = pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, ball))
    ...         pyro.sample("x", dist.Normal(ball.dist0(z), 0.1), obs=x)
    >>> guide = AutoWrappedNormal(model)
    >>> svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), pyro.infer.Trace_ELBO())
    >>> loss = svi.step(torch.ones(5))
    >>> guide.locs.z.shape, guide.median()["z"].shape, guide.quantiles([0.1, 0.5, 0.9])["z"].shape
    (torch.Size([5, 2]), torch.Size([5, 2]), torch.Size([3, 5, 2]))
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        init_loc_fn: Callable[..., Any] = init_to_feasible,
        init_scale: float = 0.1,
        create_plates: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn, init_scale=init_scale, create_plates=create_plates)
        # In a tuple, so that a module does not become part of this one.
        self._program: tuple[Callable[..., Any]] | None = (model,)

    def __getstate__(self) -> dict[str, Any]:
        # As Pyro's guides, without the model.
        return {**super().__getstate__(), "_program": None}

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        for name, site in self._sites():
            point = single_value(site["fn"].support)
            if isinstance(point, OnManifold):
                # Pyro starts from the unconstrained coordinates, which are others where geodesics close.
                loc = self._get_loc_and_scale(name)[0].detach()
                loc = point.manifold.to_normal_coords(None, point.manifold.from_unconstrained(loc))
                deep_setattr(self.locs, name, PyroParam(loc, constraints.real, self._event_dims[name]))
        self._moving: set[str] = set()
        # As other tensors, so that a curvature that is a latent is not the same one.
        values = {name: site["value"].clone() for name, site in self._sites()}
        for name, site in self._sites():
            point = single_value(site["fn"].support)
            # A number does not move, nor does a buffer, which is the same tensor at every run.
            if isinstance(point, OnManifold) and any(isinstance(c, Tensor) for c in point.manifold.curvatures):
                again = single_value(self._present_support(name, values, args, kwargs))
                pairs = zip(again.manifold.curvatures, point.manifold.curvatures, strict=True)
                if any(a is not b for a, b in pairs):
                    self._moving.add(name)
                    self._check_known(name, values, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw every latent; the draws by name."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        plates = self._create_plates(*args, **kwargs)
        indices = {name: plate.indices for name, plate in plates.items()}
        result: dict[str, Tensor] = {}
        for name, site in self._sites():
            support = self._support(name, site, {**indices, **result}, args, kwargs)
            with ExitStack() as stack:
                for frame in site["cond_indep_stack"]:
                    stack.enter_context(plates[frame.name])
                result[name] = pyro.sample(name, self._distribution(name, support))
        return result

    @torch.no_grad()
    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The centre of every latent: ``loc`` of the wrapped normal of a point, the median of all else.

        ``loc`` is the Fréchet mean, except on spheres that the guide winds around
        (:attr:`WrappedNormal.mean <pyro_hyperbolic.distributions.WrappedNormal.mean>`).

        :param args: the model's arguments, like ``kwargs``; needed where the curvature is learned or drawn.
        """
        medians: dict[str, Tensor] = {}
        for name, site in self._sites():
            support = self._support(name, site, medians, args, kwargs)
            medians[name] = centre(support, self._get_loc_and_scale(name)[0]).clone()
        return medians

    @torch.no_grad()
    def quantiles(self, quantiles: Tensor | list[float], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        r"""Quantiles of every latent, with a leading dimension over ``quantiles``.

        A point has no order. Its quantile at ``p`` is :math:`\exp_\mu(v/\lambda_\mu)` where each coordinate of
        ``v`` is at its own quantile, :math:`v_i = \sigma_i \Phi^{-1}(p)`: the normal coordinates at ``loc``
        are independent Gaussians, as the unconstrained coordinates of any other latent are. At 0.5 it is ``loc``.

        :param args: as for :meth:`median`.
        """
        centres = self.median(*args, **kwargs)
        result = {}
        for name, site in self._sites():
            loc, scale = self._get_loc_and_scale(name)
            levels = torch.as_tensor(quantiles, dtype=loc.dtype, device=loc.device)
            v = scale * torch.special.ndtri(levels.reshape((-1,) + (1,) * loc.dim()))
            support = self._support(name, site, centres, args, kwargs)
            point = single_value(support)
            if isinstance(point, OnManifold):
                result[name] = point.manifold.from_normal_coords(centres[name], v)
            else:
                result[name] = biject_to(support)(loc + v)
        return result

    def _sites(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return self.prototype_trace.iter_stochastic_nodes()

    def _distribution(self, name: str, support: Constraint) -> Any:
        loc, scale = self._get_loc_and_scale(name)
        point = single_value(support)
        if isinstance(point, OnManifold):
            distribution = WrappedNormal(centre(support, loc), scale, point.manifold)
            return distribution.to_event(self._event_dims[name] - 1)
        gaussian = dist.Normal(loc, scale).to_event(self._event_dims[name])
        if point is constraints.real:
            return gaussian
        return dist.TransformedDistribution(gaussian, [biject_to(support).with_cache()])

    def _support(
        self, name: str, site: dict[str, Any], values: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Constraint:
        return self._present_support(name, values, args, kwargs) if name in self._moving else site["fn"].support

    def _check_known(self, name: str, values: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a curvature that the latents of this guide do not determine."""
        # One minibatch for both runs: the curvature may depend on it.
        minibatch = {plate: torch.arange(frame.size) for plate, frame in self._prototype_frames.items()}
        supports = [self._present_support(name, {**minibatch, **values}, args, kwargs) for _ in range(2)]
        first, second = [single_value(support).manifold for support in supports]
        if first != second:
            raise ValueError(
                f"the curvature of site {name!r} depends on a draw of the model that this guide does not see (hidden by"
                " poutine.block?), so its points would lie on another manifold than the model's; put the curvature's"
                " site in the same AutoWrappedNormal, or write the guide by hand."
            )

    def _present_support(
        self, name: str, values: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Constraint:
        """The support of a site in the model as it is now, given the latents before it."""
        if self._program is None:
            raise ValueError(
                f"the curvature of site {name!r} is the model's, which a guide that was copied or loaded does not have;"
                " make a new guide and load its state_dict."
            )
        model = poutine.condition(self._program[0], data=values)
        model = poutine.escape(model, lambda msg: msg["type"] == "sample" and msg["name"] == name)
        try:
            poutine.block(model, hide_fn=lambda msg: msg["type"] == "sample")(*args, **kwargs)
        except NonlocalExit as found:
            return found.site["fn"].support
        raise ValueError(f"the model had a site {name!r} when the guide first ran, but has none now.")


def centre(support: Constraint, loc: Tensor) -> Tensor:
    """What the parameters of a site say of its centre: ``loc`` of a point, the median of all else."""
    point = single_value(support)
    return point.manifold.from_normal_coords(None, loc) if isinstance(point, OnManifold) else biject_to(support)(loc)
