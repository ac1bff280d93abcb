"""An automatic guide that is a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.util import sum_rightmost
from pyro.infer.autoguide import init_to_feasible
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint

from pyro_hyperbolic.distributions import manifold_flow
from pyro_hyperbolic.distributions.constraints import OnManifold
from pyro_hyperbolic.geometry import Euclidean
from pyro_hyperbolic.infer.autoguide import AutoWrappedNormal, centre
from pyro_hyperbolic.infer.match import single_value
from pyro_hyperbolic.infer.transport import Transport


class AutoManifoldFlow(AutoWrappedNormal):
    r"""A joint guide of all latents: a flow, carried to the spaces that they live on.

    .. math:: \epsilon \sim \mathcal{N}(0, I), \qquad \eta = f(\epsilon), \qquad
              z_s = \exp_{\mu_s}(\sigma_s \eta_s / \lambda_{\mu_s})

    with one flow :math:`f` (:func:`~pyro_hyperbolic.distributions.manifold_flow`) of all latents together, and learned
    means and scales for each, ``guide.locs.<site>`` and ``guide.scales.<site>``. So bands, several pieces and
    dependences between latents have a place, which the wrapped normals of :class:`AutoWrappedNormal` have not. The flow
    starts as the identity, where the two guides are the same.

    On a sphere the exponential map is not one-to-one, and the stereographic projection from the antipode of
    :math:`\mu_s` takes its place (:meth:`~pyro_hyperbolic.geometry.Manifold.from_unconstrained`). A latent that is not
    a point is the image of :math:`\mu_s + \sigma_s\eta_s` under ``biject_to`` of its support. The density is
    exact, in the volume of each space. The draws of all latents are one auxiliary site, and every latent is a ``Delta``
    with the density of its map, as in Pyro's ``AutoNormalizingFlow``.

    It works with every loss that Pyro's autoguides work with, also those of importance weights (``RenyiELBO``), and as
    ``start`` of :func:`sample_posterior`; :func:`pareto_k` tells how well it fits. A plate that is subsampled is an
    error, since the latents of all data are drawn together. A curvature that is drawn or learned is read from the
    model, as in :class:`AutoWrappedNormal`.

    :param model: the model.
    :param layers: of the flow, like ``hidden_dims``, ``bins`` and ``bound``; the last one counts in :math:`\sigma_s`.
    :param init_loc_fn: as in :class:`AutoWrappedNormal`, like ``init_scale``.

    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.distributions import WrappedNormal
    >>> _ = pyro.set_rng_seed(0)
    >>> ball = PoincareBall(1.0)
    >>> def model():
    ...     z = pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, ball))
    ...     pyro.sample("x", dist.Normal(ball.dist0(z), 0.1), obs=torch.tensor(1.0))
    >>> guide = AutoManifoldFlow(model, layers=2)
    >>> svi = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), pyro.infer.Trace_ELBO())
    >>> loss = svi.step()
    >>> guide()["z"].shape
    torch.Size([2])
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        layers: int = 4,
        hidden_dims: Sequence[int] = (64, 64),
        bins: int = 8,
        bound: float = 5.0,
        init_loc_fn: Callable[..., Any] = init_to_feasible,
        init_scale: float = 0.1,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn, init_scale=init_scale)
        self._options: dict[str, Any] = {"layers": layers, "hidden_dims": hidden_dims, "bins": bins, "bound": bound}

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        for frame in self._prototype_frames.values():
            if frame.full_size not in (None, frame.size):
                raise ValueError(
                    f"plate {frame.name!r} is subsampled, but AutoManifoldFlow draws the latents of all data together;"
                    " use AutoWrappedNormal, or conditional_manifold_flow in a guide of your own."
                )
        locs = {name: self._get_loc_and_scale(name)[0] for name, _ in self._sites()}
        if not locs:
            raise ValueError("AutoManifoldFlow needs a latent, but the model has none; it needs no guide.")
        self._columns: dict[str, slice] = {}
        self._dim = 0
        for name, loc in locs.items():
            self._columns[name] = slice(self._dim, self._dim + loc.numel())
            self._dim += loc.numel()
        self.flow = manifold_flow(Euclidean(), self._dim, **self._options).to(loc)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw all latents; the draws by name."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        plates = self._create_plates(*args, **kwargs)
        eta = pyro.sample(
            f"_{type(self).__name__}_latent",
            dist.TransformedDistribution(self._noise(), [self.flow]),
            infer={"is_auxiliary": True},
        )
        result: dict[str, Tensor] = {}
        for name, site, value, log_det in self._values(eta, result, args, kwargs):
            density = 0.0 if poutine.get_mask() is False else -log_det
            with ExitStack() as stack:
                for frame in site["cond_indep_stack"]:
                    stack.enter_context(plates[frame.name])
                delta = dist.Delta(value, log_density=density, event_dim=site["fn"].event_dim)
                result[name] = pyro.sample(name, delta)
        return result

    @torch.no_grad()
    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The image of the noise 0, of every latent; in flat space, before training, the median.

        :param args: the model's arguments, like ``kwargs``; needed where the curvature is learned or drawn.
        """
        result: dict[str, Tensor] = {}
        for name, _, value, _ in self._values(self.flow(self._zero()), result, args, kwargs):
            result[name] = value
        return result

    def quantiles(self, quantiles: Tensor | list[float], *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Those of a flow have no closed form: ``NotImplementedError``."""
        raise NotImplementedError(
            "the quantiles of a flow have no closed form; draw with pyro.infer.Predictive(model, guide=guide,"
            " num_samples=1000) and take those of the draws."
        )

    def reparam(self, model: Callable[..., Any]) -> Callable[..., Any]:
        r"""The model as a program in the coordinates of this guide.

        .. math:: \epsilon \sim \mathcal{N}(0, I), \qquad z = g(\epsilon), \qquad
                  w(\epsilon) = \frac{p(x, z)\, |\partial z/\partial\epsilon|}{\mathcal{N}(\epsilon \mid 0, I)}

        The one latent that remains is the noise of the guide, the site ``"flow_base"``. All latents of the guide are
        deterministic functions of it, and the rest of the joint density is the importance weight :math:`w`, which is
        constant where the guide is exact. Posterior and evidence stay those of the model, however good the guide is.
        A guide that is near makes the posterior of the noise nearly a standard normal one, which chains explore with
        ease (Hoffman et al., *NeuTra-lizing Bad Geometry in Hamiltonian Monte Carlo Using Neural Transport*, 2019).
        What the guide leaves out lies far out in the noise, where chains may not come, and their diagnostics need not
        show it: compare with chains of the model itself.

        It is Pyro's ``NeuTraReparam(guide).reparam(model)`` for this guide, for any algorithm, with curvatures that are
        drawn, and counts the density of the flow once where there are plates. The parameters of the guide are not
        those of the program: training the program does not train them.

        :param model: that which this guide was made for, and is trained on.

        >>> from pyro_hyperbolic import PoincareBall
        >>> from pyro_hyperbolic.distributions import WrappedNormal
        >>> def model():
        ...     pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, PoincareBall(1.0)))
        >>> guide = AutoManifoldFlow(model, layers=2)
        >>> program = guide.reparam(model)
        >>> mcmc = pyro.infer.MCMC(pyro.infer.NUTS(program), num_samples=3, warmup_steps=3, disable_progbar=True)
        >>> mcmc.run()
        >>> samples = mcmc.get_samples()
        >>> samples["flow_base"].shape
        torch.Size([3, 2])
        >>> pyro.infer.Predictive(program, samples, return_sites=["z"])()["z"].shape
        torch.Size([3, 2])
        """

        def program(*args: Any, **kwargs: Any) -> Any:
            if self.prototype_trace is None:
                self._setup_prototype(*args, **kwargs)
            noise = self._noise()
            base = pyro.sample("flow_base", noise)
            eta = self.flow(base)
            with Transport(self._columns, partial(self._carry, eta), eta.shape[:-1]) as transport:
                result = model(*args, **kwargs)
            log_det = self.flow.log_abs_det_jacobian(base, eta) + transport.log_det
            pyro.factor("flow_weight", log_det - noise.log_prob(base))
            return result

        return program

    def _noise(self) -> Any:
        return dist.Normal(self._zero(), 1.0).to_event(1)

    def _zero(self) -> Tensor:
        return torch.zeros_like(self.flow.layers.layers[0][0].centre.constant[:1]).expand(self._dim)

    def _values(
        self, eta: Tensor, known: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tuple[str, dict[str, Any], Tensor, Tensor]]:
        """Name, site, value and logarithm of the determinant of each latent; ``known`` are those before it."""
        for name, site in self._sites():
            yield name, site, *self._carry(eta, name, self._support(name, site, known, args, kwargs))

    def _carry(self, eta: Tensor, name: str, support: Constraint) -> tuple[Tensor, Tensor]:
        """The value of a latent, and the logarithm of the determinant."""
        loc, scale = self._get_loc_and_scale(name)
        # Particles have plates of their own on the left.
        shape = torch.broadcast_shapes(loc.shape, eta.shape[:-1] + (1,) * self._event_dims[name])
        v = scale * eta[..., self._columns[name]].reshape(shape)
        value, log_det = _carried(support, loc, v)
        log_det = sum_rightmost(log_det, log_det.dim() - value.dim() + support.event_dim)
        return value, log_det + sum_rightmost(scale.log().expand(shape), self._event_dims[name])


def _carried(support: Constraint, loc: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The value of a latent with coordinates ``v`` around ``loc``, and the logarithm of the determinant."""
    point = single_value(support)
    if not isinstance(point, OnManifold):
        transform = biject_to(support)
        value = transform(loc + v)
        return value, transform.log_abs_det_jacobian(loc + v, value)
    manifold = point.manifold
    coords = v
    if manifold.geodesics_close:
        coords = manifold.to_normal_coords(None, manifold.from_unconstrained(v))
    return manifold.from_normal_coords(centre(support, loc), coords), manifold.log_det_unconstrained(v)
