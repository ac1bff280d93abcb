"""Flows: trainable transforms of a space onto itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions.conditional import ConditionalTransformModule
from pyro.distributions.torch_transform import TransformModule
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor, nn
from torch.distributions import Transform, constraints

from pyro_hyperbolic.distributions.base import base_distribution, version
from pyro_hyperbolic.distributions.constraints import on
from pyro_hyperbolic.distributions.flow_steps import ChartStep, SphereStep, Step, axes, joined
from pyro_hyperbolic.distributions.provenance import Run, complaint, mark_of
from pyro_hyperbolic.geometry import Manifold, Sphere
from pyro_hyperbolic.ops.checks import check_sizes, checked_integer, inspectable, is_number, validating


class FlowParameters(nn.Module):
    """The parameters of a flow.

    :param space: the space, whose curvatures are not kept.
    :param dim: its dimension.
    :param context_dim: how many numbers the flow depends on besides.
    """

    def __init__(self, space: Manifold, dim: int, context_dim: int) -> None:
        super().__init__()
        self.dim, self.context_dim, self.kind = dim, context_dim, space.kind

    def transformed(self, space: Manifold, x: Tensor, context: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        """The point that another one is taken to, or comes from, and the logarithm of the determinant at the first."""
        raise NotImplementedError

    def summary(self) -> str:
        """How the flow is shown, beside its space."""
        raise NotImplementedError

    def state(self) -> Any:
        """What changes whenever the flow becomes another one."""
        return [(id(p), version(p)) for p in self.parameters()]


class FlowLayers(FlowParameters):
    """The parameters of a flow in layers, each with one step for each factor of the space, which knows the others.

    :param space: the space, whose curvatures are not kept.
    :param dim: its dimension.
    :param context_dim: how many numbers every step depends on besides; for the others see :func:`manifold_flow`.
    """

    def __init__(
        self,
        space: Manifold,
        dim: int,
        context_dim: int,
        *,
        layers: int,
        hidden_dims: Sequence[int],
        bins: int,
        bound: float,
    ) -> None:
        super().__init__(space, dim, context_dim)
        leaves = space.leaves(dim)
        self.sizes = [leaf.ambient_dim(d) for leaf, d in leaves]
        counts = [d + 1 if isinstance(leaf, Sphere) else d for leaf, d in leaves]

        def step(leaf: Manifold, d: int, others: int) -> Step:
            if isinstance(leaf, Sphere):
                return SphereStep(d, others, hidden_dims, bins)
            fades = leaf.geodesics_close or any(leaf.signed_curvatures)
            return ChartStep(d, others, hidden_dims, bins, bound, fades)

        self.layers = nn.ModuleList(
            nn.ModuleList(
                step(leaf, d, context_dim + sum(counts) - count)
                for (leaf, d), count in zip(leaves, counts, strict=True)
            )
            for _ in range(layers)
        )

    def summary(self) -> str:
        return f"layers={len(self.layers)}"

    def transformed(self, space: Manifold, x: Tensor, context: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        check_sizes(x)
        leaves = [leaf for leaf, _ in space.leaves(self.dim)]
        first: Any = self.layers[0]
        parts = zip(first, leaves, x.split(self.sizes, -1), strict=True)
        states = [step.state(leaf, part) for step, leaf, part in parts]
        total = torch.zeros_like(x[..., 0])
        order = range(len(leaves))
        layers = list(zip(self.layers, *[self._matrices(i, states[i].dtype) for i in order], strict=True))
        for steps, *matrices in reversed(layers) if inverse else layers:
            for i in reversed(order) if inverse else order:
                others = [steps[j].features(states[j]) for j in order if j != i]
                known = joined(*others, context) if others else context
                states[i], log_det = steps[i](leaves[i], states[i], matrices[i], known, inverse)
                total = total + log_det
        rows = zip(first, leaves, states, strict=True)
        return joined(*[step.point(leaf, state) for step, leaf, state in rows]), total

    def _matrices(self, factor: int, dtype: torch.dtype) -> Sequence[Tensor | None]:
        """Of the turns of a factor, by layer."""
        layers: list[Any] = list(self.layers)
        turns = [steps[factor].turn for steps in layers]
        return turns if turns[0] is None else axes(turns, dtype).unbind(0)


class FlowTransform(Transform):
    """A flow on a space, with the numbers that it depends on.

    The last point that it made is kept with the one it came from, so that a sample's density needs no inverse.

    :param layers: the parameters.
    :param manifold: the space.
    :param context: ``(..., context_dim)``.
    """

    bijective = True
    layers: FlowParameters

    def __init__(self, layers: FlowParameters, manifold: Manifold, context: Tensor | None = None) -> None:
        super().__init__()
        self.layers, self.manifold, self._context = layers, manifold, context
        # As of distributions: in a program a point may be one that does not move with a curvature.
        self._run = Run.on(manifold) if am_i_wrapped() else None
        self.clear_cache()

    @property
    def domain(self) -> constraints.Constraint:  # type: ignore[override]  # torch: plain attribute
        return on(self.manifold)

    @property
    def codomain(self) -> constraints.Constraint:  # type: ignore[override]  # torch: plain attribute
        return on(self.manifold)

    def clear_cache(self) -> None:
        """Forget the last point."""
        self._last: tuple[Tensor | None, Tensor | None, Any, Any] = None, None, None, None
        self._drew = False

    def with_cache(self, cache_size: int = 1) -> FlowTransform:
        """The same: the last point is kept in any case."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        # The last point belongs to the graph it was made in and cannot be copied.
        return {**super().__getstate__(), "_last": (None, None, None, None), "_drew": False}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.manifold!r}, {self.layers.summary()})"

    def _call(self, x: Tensor) -> Tensor:
        self._check(x)
        y, log_det = self._transformed(x, inverse=False)
        self._last, self._drew = (x, y, log_det, self._state(x, y)), True
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        last = self._last[0]
        is_parameter = y.requires_grad and y.is_leaf
        if self._drew and last is not None and self._is_last(last, y) and not (is_parameter or self._lacks_graph(y)):
            return last
        if self._run is not None:
            stray = complaint(y, self.manifold, self._run, self._is_of, validate=False)
            if stray is not None:
                raise ValueError(f"{type(self).__name__}: {stray}")
        x, log_det = self._transformed(y, inverse=True)
        # A point from outside is not recognised again.
        self._last, self._drew = (x, y, log_det, self._state(x, y)), False
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if self._is_last(x, y):
            return self._last[2]
        return self._transformed(x, inverse=False)[1]

    def _check(self, x: Tensor) -> None:
        """Refuse points of another space: torch compares numbers of dimensions alone.

        A transform does not know whether its distribution validates. It does where distributions do by default.
        """
        size = self.manifold.ambient_dim(self.layers.dim)
        if x.shape[-1:] != (size,):
            raise ValueError(
                f"points of {self.manifold!r} have {size} coordinates, got shape {tuple(x.shape)}; transform a"
                " distribution on that space."
            )
        found = mark_of(x)
        if found is not None:
            is_here = found.manifold.kind == self.manifold.kind and not (
                all(isinstance(c, float) for c in (*found.manifold.curvatures, *self.manifold.curvatures))
                and found.manifold.curvatures != self.manifold.curvatures
            )
        else:
            reads = bool(self.manifold.curvatures) and validating() and inspectable(x)
            is_here = not reads or bool(self.domain.check(x).all())
        if not is_here:
            home = "" if found is None else f", but on {found.manifold!r}"
            raise ValueError(
                f"the points to transform are not on {self.manifold!r}{home}; transform a distribution on that space,"
                " with the same curvature."
            )

    def _transformed(self, x: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        context = x.new_zeros(0) if self._context is None else self._context
        return self.layers.transformed(self.manifold, x, context, inverse)

    def _is_last(self, x: Tensor, y: Tensor) -> bool:
        """Whether these are the last points, and nothing has changed since, in them or in the flow."""
        return x is self._last[0] and y is self._last[1] and self._state(x, y) == self._last[3]

    def _state(self, x: Tensor, y: Tensor) -> Any:
        return version(x), version(y), self.layers.state()

    def _is_of(self, distribution: Any) -> bool:
        return any(transform is self for transform in getattr(base_distribution(distribution), "transforms", ()))

    def _lacks_graph(self, y: Tensor) -> bool:
        """Whether a point was made without the derivatives that are asked for now."""
        if y.requires_grad or not torch.is_grad_enabled():
            return False
        given = self._context is not None and self._context.requires_grad
        return given or self.manifold.moves or any(p.requires_grad for p in self.layers.parameters())

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        context = torch.Size() if self._context is None else self._context.shape[:-1]
        return torch.Size((*torch.broadcast_shapes(shape[:-1], self.manifold.batch_shape, context), shape[-1]))

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        return self.forward_shape(shape)


class ManifoldFlow(FlowTransform, TransformModule):
    """A flow that is trained: what :func:`manifold_flow` and :func:`continuous_flow` make."""

    def __init__(self, layers: FlowParameters, manifold: Manifold) -> None:
        super().__init__(layers, manifold)

    def on(self, space: Manifold) -> FlowTransform:
        """The same parameters on a space of the same kind with other curvatures, as one that is drawn or learned."""
        return FlowTransform(self.layers, _same_kind(self.layers, space))


class ConditionalManifoldFlow(ConditionalTransformModule):
    """A flow that depends on numbers: what :func:`conditional_manifold_flow` and its continuous twin make."""

    def __init__(self, layers: FlowParameters, manifold: Manifold) -> None:
        super().__init__()
        self.layers, self.manifold = layers, manifold

    def condition(self, context: Tensor, space: Manifold | None = None) -> FlowTransform:
        """The flow for one context, or for a batch of them.

        :param context: ``(..., context_dim)``; the batch broadcasts with that of points.
        :param space: a space of the same kind with other curvatures, as one that is drawn or learned.
        """
        size = self.layers.context_dim
        if not isinstance(context, Tensor) or context.shape[-1:] != (size,):
            got = tuple(context.shape) if isinstance(context, Tensor) else repr(context)
            raise ValueError(f"context must be a tensor (..., {size}), got {got}; set context_dim to its last size.")
        return FlowTransform(self.layers, self.manifold if space is None else _same_kind(self.layers, space), context)


def manifold_flow(
    space: Manifold,
    dim: int,
    *,
    layers: int = 4,
    hidden_dims: Sequence[int] = (64, 64),
    bins: int = 8,
    bound: float = 5.0,
) -> ManifoldFlow:
    r"""A trainable transform :math:`f` of a space onto itself, as the helpers of ``pyro.distributions.transforms``.

    In a ``TransformedDistribution`` on a distribution ``p`` of points it gives the density

    .. math:: q(f(x)) = p(x)/|\det Df(x)|

    with respect to the Riemannian volume, as all densities of this library. Inverse and determinant have closed forms.
    It starts as the identity, with axes at random.

    A layer moves each factor of a product in turn, as a function of the others:

    * **Hyperbolic and flat space:** an isometry takes a learned point to the origin. Then rational-quadratic splines
      (Durkan et al., 2019) change the normal coordinates there, in learned axes, each half as a function of the other.
      They do so between ``-bound`` and ``bound``, and nothing beyond, so a point moves by a bounded length.
    * **Spheres:** a conformal map, and splines of latitudes and longitudes around learned axes, in the manner of
      Rezende et al., *Normalizing flows on tori and spheres* (2020). No point is left out, and derivatives are
      continuous everywhere, at the poles of the axes and at the antipode of the origin too.
    * **Either sign** (:class:`~pyro_hyperbolic.Stereographic`)**:** as hyperbolic space, in the coordinates of
      :meth:`~pyro_hyperbolic.geometry.Manifold.from_unconstrained`, with splines that tend to the identity at infinity,
      which for ``k > 0`` is the antipode. It is continuous in ``k`` through 0, but its derivative in ``k`` jumps there.
    * Any other space: the same without the isometry.

    No layer is equivariant: a flow after an isometry is another flow. Lengths are those of the space, except on
    spheres, where the flow is that of the unit sphere for every ``c``.

    :param space: the space. For a curvature that is learned or drawn, which is another tensor at each step, write
        ``flow.on(space)``: the same parameters there.
    :param dim: its dimension.
    :param layers: how many layers.
    :param hidden_dims: sizes of the hidden layers of the networks.
    :param bins: of each spline.
    :param bound: what coordinates of hyperbolic and flat factors are changed.

    The parameters are float32. Points of another dtype are transformed in that; for an inverse to the last digits in
    float64 use ``flow.double()``.

    >>> import pyro.distributions as dist
    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.distributions import WrappedNormal
    >>> _ = torch.manual_seed(0)
    >>> ball = PoincareBall(1.0)
    >>> flow = manifold_flow(ball, 2)
    >>> q = dist.TransformedDistribution(WrappedNormal(torch.zeros(2), 1.0, ball), [flow])
    >>> q.log_prob(q.rsample((5,))).shape, q.support
    (torch.Size([5]), on(PoincareBall(c=1.0)))
    """
    return ManifoldFlow(_made(space, dim, 0, layers, hidden_dims, bins, bound), space)


def conditional_manifold_flow(
    space: Manifold,
    dim: int,
    context_dim: int,
    *,
    layers: int = 4,
    hidden_dims: Sequence[int] = (64, 64),
    bins: int = 8,
    bound: float = 5.0,
) -> ConditionalManifoldFlow:
    """As :func:`manifold_flow`, with parameters that are functions of a context.

    :param context_dim: how many numbers a context has. The others as there; for a curvature that is learned or drawn
        write ``flow.condition(context, space)``.

    >>> import pyro.distributions as dist
    >>> from pyro_hyperbolic import Sphere
    >>> from pyro_hyperbolic.distributions import HypersphericalUniform
    >>> flow = conditional_manifold_flow(Sphere(1.0), 2, context_dim=4)
    >>> q = dist.ConditionalTransformedDistribution(HypersphericalUniform(3).expand((5,)), [flow])
    >>> q.condition(torch.randn(5, 4)).sample().shape
    torch.Size([5, 3])
    """
    context_dim = checked_integer("context_dim", context_dim, least=1)
    return ConditionalManifoldFlow(_made(space, dim, context_dim, layers, hidden_dims, bins, bound), space)


def _made(
    space: Manifold,
    dim: int,
    context_dim: int,
    layers: int,
    hidden_dims: Sequence[int],
    bins: int,
    bound: float,
) -> FlowLayers:
    dim, hidden_dims = checked_sizes(space, dim, hidden_dims)
    if not (is_number(bound) and 0 < bound < math.inf):
        raise ValueError(f"bound must be a positive number, got {bound!r}; pass a length that holds most points.")
    return FlowLayers(
        space,
        dim,
        context_dim,
        layers=checked_integer("layers", layers, least=1),
        hidden_dims=hidden_dims,
        bins=checked_integer("bins", bins, least=2),
        bound=float(bound),
    )


def checked_sizes(space: Manifold, dim: int, hidden_dims: Sequence[int]) -> tuple[int, list[int]]:
    """The dimension of a space, and the sizes of the hidden layers of networks of its points."""
    on(space)  # refuses what is no manifold
    dim = checked_integer("dim", dim, least=1)
    space.ambient_dim(dim)  # a product refuses a dimension that is not its own
    if not isinstance(hidden_dims, Sequence):
        raise ValueError(f"hidden_dims must be a sequence of sizes, such as (64, 64), got {hidden_dims!r}.")
    return dim, [checked_integer("a size of hidden_dims", size, least=1) for size in hidden_dims]


def _same_kind(layers: FlowParameters, space: Manifold) -> Manifold:
    if not isinstance(space, Manifold) or space.kind != layers.kind:
        raise ValueError(f"space must be a {layers.kind}, on which the flow was made, got {space!r}.")
    return space
