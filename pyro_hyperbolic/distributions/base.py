"""Base class of the distributions on a manifold."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from pyro.distributions import Independent, MaskedDistribution, TorchDistribution
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn
from torch.distributions import constraints
from typing_extensions import Self

from pyro_hyperbolic.distributions.constraints import on
from pyro_hyperbolic.distributions.provenance import Origin, Run, complaint, mark, without_graph
from pyro_hyperbolic.distributions.wrappers import PointDistribution
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.geometry.chart import StereographicChart
from pyro_hyperbolic.ops.checks import check_precision, inspectable, static_size

# A distribution is held by a dtype if its radius at this normal score (99.9% of its mass) still is.
MASS_SCORE = 3.0


class ManifoldDistribution(PointDistribution, TorchDistribution):
    r"""Base class of the distributions of points of a manifold, for those of your own too.

    A point is :math:`z = \exp_{loc}(v / \lambda_{loc})` with random normal coordinates ``v`` at ``loc``. A subclass
    calls ``_set_loc(loc, manifold)`` in ``__init__`` and in ``expand``, and gives

    * ``_rsample_coords(sample_shape)``: draws of ``v``, ``sample_shape + batch_shape + (dim,)``;
    * ``_log_density(v)``: the log-density of ``z``, in the Riemannian volume, as a function of ``v``;
    * ``_outer_radii()``: in each of ``_leaves``, the parts of the space, the radius around ``loc`` that holds all but a
      thousandth of the mass, ``batch_shape``. Sampling where coordinates end before that is an error;
    * ``arg_constraints`` and ``expand``, as every distribution of torch;
    * ``_spread``: where users find the spread, since there is no variance;
    * for :meth:`from_noise` and :meth:`to_noise`, if it has them, ``_colour`` and ``_whiten``.

    It gets ``support``, ``mean``, ``mode``, ``rsample``, ``log_prob`` and ``lebesgue_log_prob``. A density that is a
    function of one ``v`` is that of ``z`` only where the exponential map is one-to-one. So refuse a ``manifold`` with
    :attr:`~pyro_hyperbolic.geometry.Manifold.geodesics_close`, or sum over all preimages as
    :mod:`~pyro_hyperbolic.distributions.windings` does.

    The last sample is kept with the ``v`` that it came from, so its ``log_prob`` needs no
    logarithm map and loses no precision far from the origin. As with any cached transform of torch, the derivative of
    ``log_prob`` with respect to the sample itself then needs a copy of the sample (``z.detach().requires_grad_()``).

    Attributes: ``loc``, ``manifold``, and ``dim``, the dimension of the space.
    """

    has_rsample = True
    loc: Tensor
    manifold: Manifold
    _is_central = False  # whether loc is known to be the origin

    def __init__(self, batch_shape: torch.Size, event_shape: torch.Size, validate_args: bool | None = None) -> None:
        # torch's validation reads values, which tensors on the meta device do not have.
        super().__init__(batch_shape, event_shape, validate_args=False if self.loc.is_meta else validate_args)

    def _set_loc(self, loc: Tensor, manifold: Manifold) -> None:
        self.loc = loc
        self.manifold = manifold
        self.dim = manifold.intrinsic_dim(static_size(loc))
        self._last: tuple[Any, Any, int] = None, None, 0  # coordinates and point of the last sample, and its version
        # Part of a program: its points are those of an algorithm, which may not know that a curvature has moved.
        self._in_program = am_i_wrapped()
        self._run = Run.on(manifold) if self._in_program else Run()

    def _rsample_coords(self, sample_shape: torch.Size) -> Tensor:
        raise NotImplementedError

    def _log_density(self, v: Tensor) -> Tensor:
        raise NotImplementedError

    def _log_coords_density(self, v: Tensor) -> Tensor:
        """Log-density of the normal coordinates at ``loc``, with respect to Lebesgue measure."""
        return self._log_density(v) + self.manifold.log_det_exp(v)

    def _colour(self, noise: Tensor) -> Tensor:
        """Normal coordinates of a sample from white noise, both ``(..., d)``."""
        raise NotImplementedError

    def _whiten(self, v: Tensor) -> Tensor:
        """The inverse of ``_colour``."""
        raise NotImplementedError

    def _outer_radii(self) -> list[Tensor]:
        """In each of ``_leaves`` the radius around ``loc`` that holds all but a thousandth of the mass."""
        raise NotImplementedError

    @property
    def _leaves(self) -> list[tuple[Manifold, int]]:
        """The parts of the space in which the density is worked out, and their dimensions."""
        return [(leaf, part) for leaf, dim in self.manifold.leaves(self.dim) for part in leaf.parts(dim)]

    def _split_coords(self, v: Tensor) -> tuple[Tensor, ...]:
        """Normal coordinates by part of the space."""
        return v.split([dim for _, dim in self._leaves], -1)

    def _split_points(self, value: Tensor) -> tuple[Tensor, ...]:
        """Points by factor."""
        return value.split([leaf.ambient_dim(dim) for leaf, dim in self._leaves], -1)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        # Who asks for it when the run is over keeps it for later ones.
        return on(without_graph(self.manifold) if self._run.is_over else self.manifold)

    @property
    def mean(self) -> Tensor:
        """The Fréchet mean, which is ``loc``. (A distribution with more than one, such as the uniform, has it too.)"""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The mode, which is ``loc``."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        raise NotImplementedError(
            f"{type(self).__name__} has no variance, because coordinates are not lengths; for how far it spreads"
            f" see {self._spread}."
        )

    @property
    def _spread(self) -> str:
        """Where the user finds the spread instead."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, manifold: {self.manifold!r})"

    def rsample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = torch.Size()) -> Tensor:
        self._check_reach()
        value = self._point(self._rsample_coords(torch.Size(sample_shape)))
        return mark(value, self.manifold.detach(), Origin.DRAWN) if self._in_program else value

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Log-density with respect to the Riemannian volume.

        It is exact for the distribution's own last sample, however far out it is. Any other point goes through the
        logarithm map, which loses at most a factor of :math:`e^{2\sqrt{c}\,d(0, loc)}` in relative precision. A point
        off the manifold is an error; without validation the density outside of the ball is 0.

        In a Pyro program a point that does not move with a curvature that does is an error
        (:ref:`drawn-curvature`).
        """
        if self._in_program and not self.drew(value):
            stray = complaint(
                value, self.manifold, self._run, lambda fn: base_distribution(fn) is self, self._validate_args
            )
            if stray is not None:
                raise ValueError(f"{type(self).__name__}: {stray}")
        if self._validate_args:
            self._validate_sample(value)
            return self._log_density(self._coords(value))
        return self._density(value)

    def _density(self, value: Tensor) -> Tensor:
        """Log-density of a point of whatever origin, also outside of the ball: ``-inf``; that of ``nan`` is ``nan``."""
        if self.drew(value):
            return self._log_density(self._coords(value))
        on = self._in_chart(value)
        density = self._log_density(self._coords(self._moved_onto(value, on)))
        return torch.where(on, density, torch.where(value.isnan().any(-1), torch.nan, density - torch.inf))

    def _in_chart(self, value: Tensor) -> Tensor:
        """Which coordinates geometry can take: those inside of the ball, and all finite ones where there is no border.

        Formulae of the hyperboloid and the sphere are smooth around them, where derivatives in coordinates may look.
        """
        parts = zip(self._leaves, self._split_points(value), strict=True)
        inside = [
            leaf.contains(part) if leaf.ambient_dim(dim) == dim else part.isfinite().all(-1)
            for (leaf, dim), part in parts
        ]
        return functools.reduce(torch.logical_and, inside)

    def _moved_onto(self, value: Tensor, on: Tensor) -> Tensor:
        """``value``, with ``loc`` in the place of points where geometry and its derivatives end."""
        return torch.where(on.unsqueeze(-1), value, self.loc.to(value.dtype))

    def from_noise(self, noise: Tensor) -> Tensor:
        """A sample as a smooth function of white noise ``(..., d)``."""
        self._check_reach()
        return self._point(self._colour(noise))

    def to_noise(self, value: Tensor) -> Tensor:
        """The inverse of :meth:`from_noise`, ``(..., d)``."""
        return self._whiten(self._coords(value))

    def _share_within(self, value: Tensor, radius: float) -> Tensor:
        """How likely the noise behind a point is no longer than ``radius``: 0 or 1 where one noise leads to each."""
        return (self.to_noise(value).norm(dim=-1) <= radius).to(value.dtype)

    def lebesgue_log_prob(self, value: Tensor) -> Tensor:
        """Log-density with respect to the Lebesgue measure of the coordinates of ``value``.

        That measure does not move with the curvature. So this is the likelihood of given coordinates under a curvature
        that is drawn or learned.
        """
        if self._validate_args:
            self._validate_sample(value)
        return self._lebesgue_density(value)

    def _lebesgue_density(self, value: Tensor) -> Tensor:
        """The same of any coordinates, without validation: ``-inf`` for those of no point."""
        on = self._moved_onto(value, self._in_chart(value))
        return self._density(value) + self.manifold.log_volume_element(on)

    def _coords(self, value: Tensor) -> Tensor:
        """Normal coordinates of ``value``: those it was made from, where they serve.

        Only samples are kept: of a value from outside nothing is known. A sample drawn without a graph knows nothing of
        the derivatives in ``loc`` and ``c``, so these need the logarithm map.
        """
        if not self.drew(value) or self._lacks_graph(value):
            return self.manifold.to_normal_coords(self._centre, value)
        return self._last[0]

    def _point(self, v: Tensor) -> Tensor:
        """The point with normal coordinates ``v`` at ``loc``, which is the last sample from now on."""
        value = self.manifold.from_normal_coords(self._centre, v)
        self._last = v, value, version(value)
        return value

    def at_origin(self) -> Self:
        """This distribution, told that its ``loc`` is the origin, from which the maps of a space cost half.

        Values alone do not tell: they are not read in a step that is compiled or captured.
        """
        self._is_central = True
        return self

    @property
    def _centre(self) -> Tensor | None:
        """``loc``, as the maps of a space take it."""
        return None if self._is_central else self.loc

    def __getstate__(self) -> dict[str, Any]:
        # The last sample belongs to the graph it was made in and cannot be copied.
        return self.__dict__ | {"_last": (None, None, 0)}

    def _lacks_graph(self, sample: Tensor) -> bool:
        moving = self.loc.requires_grad or self.manifold.moves
        return moving and torch.is_grad_enabled() and not sample.requires_grad

    def drew(self, value: Tensor) -> bool:
        """Whether ``value`` is the last sample, as it was drawn: nobody has changed it, or made a parameter of it."""
        is_parameter = value.requires_grad and value.is_leaf
        return value is self._last[1] and not is_parameter and version(value) == self._last[2]

    def draw_motion(self) -> tuple[Tensor, Tensor]:
        """The coordinates of the last sample, and their change as noise and ``loc`` move.

        The second value is zero. It carries the first derivatives, at fixed curvature, of the sample as this
        distribution sees it when it does not move itself. See :meth:`adopt`.
        """
        coords = self._last[0]
        v = coords.detach()
        return v, coords - v + self._loc_motion(v)

    def adopt(self, value: Tensor, v: Tensor, motion: Tensor) -> None:
        """Treat ``value``, drawn from a distribution with the same numbers, as a sample of this distribution.

        Its ``log_prob`` then needs no logarithm map. Its derivatives come from the ``motion`` of the draw instead of
        the coordinates of ``value``, so they are exact however far out it is.
        """
        coords = v + motion - self._loc_motion(v)
        self._last = coords, value, version(value)

    def _loc_motion(self, v: Tensor) -> Tensor:
        m = self.manifold.to_normal_coords(None, self.loc)
        return self.manifold.base_point_variation(m.detach(), v, m - m.detach())

    def _check_reach(self) -> None:
        """Refuse to sample where the coordinates cannot hold the mass: samples and density would disagree.

        The density is still right at a point that the coordinates do hold. Without validation nothing is checked.
        """
        if not self._validate_args:
            return
        with torch.no_grad():
            places = self._split_points(self.loc)
            for (leaf, _), place, radius in zip(self._leaves, places, self._outer_radii(), strict=True):
                self._check_reach_of(leaf, leaf.dist0(place) + radius)

    def _check_reach_of(self, leaf: Manifold, distance: Tensor) -> None:
        dtype = self.loc.dtype
        if not inspectable(distance):
            return
        reach = leaf.reach(dtype)
        if bool((distance <= reach).all()):
            return
        wide = leaf.reach(torch.float64)
        worst = (distance / reach).argmax()
        needed, reach, wide = (
            torch.as_tensor(value, device=worst.device).expand(distance.shape).flatten()[worst].item()
            for value in (distance, reach, wide)
        )
        options = []
        if dtype != torch.float64 and needed <= wide:
            options.append(f"float64 (which reaches {wide:.4g})")
        if isinstance(leaf, StereographicChart):
            options.append("the hyperboloid, Lorentz(c), whose float64 coordinates reach 708/sqrt(c)")
        remedy = "use " + " or ".join(options) if options else "reduce scale or the curvature"
        raise ValueError(
            f"{type(self).__name__} on {leaf!r}: loc and scale put mass at distance {needed:.4g} from the"
            f" origin, but {dtype} coordinates end at {reach:.4g}; {remedy}."
        )


def version(value: Tensor) -> int:
    """How often a tensor was changed in place, where torch counts that."""
    return 0 if torch.compiler.is_compiling() or value.is_inference() else value._version


def base_distribution(distribution: Any) -> Any:
    """The distribution inside ``to_event`` and ``mask``."""
    while isinstance(distribution, (Independent, MaskedDistribution)):
        distribution = distribution.base_dist
    return distribution


def as_param(name: str, value: Tensor | float, like: Tensor) -> Tensor:
    """A number, or a tensor of integers, as a tensor of the kind of ``like``; any other tensor as it is."""
    if not isinstance(value, Tensor):
        return like.new_tensor(value)
    if not value.is_floating_point() and not value.is_complex():
        return value.to(like.dtype)
    check_precision(value, name)
    return value


def expand_to(value: Tensor, shape: torch.Size) -> Tensor:
    """``value.expand(shape)``, or ``value`` itself: a leaf stays one, which a distribution needs to be copied."""
    return value if value.shape == shape else value.expand(shape)


def broadcast_batch(name: str, **shapes: torch.Size) -> torch.Size:
    """The batch shape that those of the arguments make."""
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError as error:
        given = " and ".join(f"{tuple(shape)} of {argument}" for argument, shape in shapes.items() if shape)
        raise ValueError(f"{name}: the batch shapes {given} do not broadcast.") from error


def check_point_args(name: str, loc: Tensor, manifold: Manifold | None) -> Manifold:
    """Check the arguments that every distribution on a manifold takes."""
    if not isinstance(manifold, Manifold):
        # A module of nn, which this package does not know, gives its manifold when it is called.
        remedy = "call it: manifold()" if isinstance(manifold, nn.Module) else "pass for example PoincareBall(c=1.0)"
        raise ValueError(f"{name}: manifold must be a manifold, got {manifold!r}; {remedy}.")
    if not isinstance(loc, Tensor) or loc.dim() == 0:
        raise ValueError(
            f"{name}: loc must be a floating tensor of shape (..., d), got"
            f" {tuple(loc.shape) if isinstance(loc, Tensor) else loc!r}; for d = 1 use loc.unsqueeze(-1)."
        )
    if not loc.is_floating_point():
        raise ValueError(f"{name}: loc must be a floating tensor, got {loc.dtype}; use loc.float().")
    check_precision(loc, f"{name}: loc")
    if manifold.intrinsic_dim(loc.shape[-1]) < 1:
        raise ValueError(f"{name}: loc must have at least one dimension, got {tuple(loc.shape)}.")
    return manifold


LOG_2PI = math.log(2 * math.pi)
