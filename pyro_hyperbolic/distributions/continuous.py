"""Continuous flows: a space is carried along a vector field."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.distributions.flow import ConditionalManifoldFlow, FlowParameters, ManifoldFlow, checked_sizes
from pyro_hyperbolic.distributions.flow_fields import field_on
from pyro_hyperbolic.distributions.flow_steps import joined
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.ops.checks import check_sizes, checked_integer, is_number
from pyro_hyperbolic.ops.products import einsum

_CLOCK = 3  # octaves of the waves of time


class FlowField(FlowParameters):
    """A vector field that changes in time, and the solver that follows it.

    :param space: the space, whose curvatures are not kept.
    :param dim: its dimension.
    :param context_dim: how many numbers the field depends on besides; for the others see :func:`continuous_flow`.
    """

    def __init__(
        self,
        space: Manifold,
        dim: int,
        context_dim: int,
        *,
        hidden_dims: Sequence[int],
        steps: int,
        waves: int,
        resolution: float,
    ) -> None:
        super().__init__(space, dim, context_dim)
        leaves = space.leaves(dim)
        self.steps = steps
        self.fields = [field_on(leaf, d) for leaf, d in leaves]
        self.sizes = [field.size for field in self.fields]
        self.dims, self.coordinates = [d for _, d in leaves], [leaf.ambient_dim(d) for leaf, d in leaves]
        size = sum(self.sizes)
        self.network = FieldNetwork(size, 1 + 2 * _CLOCK + context_dim, hidden_dims, waves, resolution)

    def summary(self) -> str:
        return f"steps={self.steps}"

    def state(self) -> Any:
        return self.steps, super().state()

    def transformed(self, space: Manifold, x: Tensor, context: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        check_sizes(x)
        state = self._each("state", space, x.split(self.coordinates, -1))
        batch = torch.broadcast_shapes(state.shape[:-1], context.shape[:-1])
        state = state.expand(batch + state.shape[-1:])
        total = torch.zeros_like(state[..., 0])
        times = [late(i / self.steps) for i in range(self.steps + 1)]
        if inverse:
            times.reverse()
        for start, end in itertools.pairwise(times):
            step, middle = end - start, (start + end) / 2
            first = self._rates(space, state, start, context)
            second = self._rates(space, state + step / 2 * first[0], middle, context)
            third = self._rates(space, state + step / 2 * second[0], middle, context)
            last = self._rates(space, state + step * third[0], end, context)
            move, growth = [
                step / 6 * (a + 2 * b + 2 * c + d) for a, b, c, d in zip(first, second, third, last, strict=True)
            ]
            state, total = self._settled(space, state + move), total + growth
        return self._each("point", space, state.split(self.sizes, -1)), -total if inverse else total

    def mismatch(self, space: Manifold, x: Tensor, v: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """The squared length of the difference between the field and other velocities, ``(...)``.

        :param x: points.
        :param v: components of the velocities there, in the frame carried from the origin, ``(..., d)``.
        :param time: ``(..., 1)``.
        :param context: ``(..., context_dim)``.
        """
        parts = x.split(self.coordinates, -1)
        states = self._each("state", space, parts).split(self.sizes, -1)
        inputs = [field.inputs(state, state)[0] for field, state in zip(self.fields, states, strict=True)]
        raw, _ = self.network(joined(*inputs), _clock(time, context))
        found = self._each("components", space, states, raw.split(self.sizes, -1))
        return (found - self._each("target", space, parts, v.split(self.dims, -1))).square().sum(-1)

    def _rates(self, space: Manifold, state: Tensor, time: float, context: Tensor) -> tuple[Tensor, Tensor]:
        """The velocity at a state, and the divergence of the field in the Riemannian volume."""
        states = self._settled(space, state).split(self.sizes, -1)
        size = state.shape[-1]
        basis = torch.eye(size, dtype=state.dtype, device=state.device).reshape(size, *[1] * (state.dim() - 1), size)
        alone = self._each("velocity", space, states, basis.split(self.sizes, -1)).split(self.sizes, -1)
        rows = [field.inputs(*row) for field, *row in zip(self.fields, states, alone, strict=True)]
        inputs, directions = (joined(*parts) for parts in zip(*rows, strict=True))
        raw, slopes = self.network(inputs, _clock(state.new_full((1,), time), context), directions)
        raws = raw.split(self.sizes, -1)
        velocity = self._each("velocity", space, states, raws)
        divergence = slopes.diagonal(dim1=0, dim2=-1).sum(-1)
        for field, leaf, *row in zip(self.fields, self._leaves(space), states, raws, strict=True):
            divergence = divergence + field.spread(leaf, *row)
        return velocity, divergence

    def _settled(self, space: Manifold, state: Tensor) -> Tensor:
        return self._each("settled", space, state.split(self.sizes, -1))

    def _each(self, name: str, space: Manifold, *parts: Any) -> Tensor:
        """What a method of the field of each factor gives, as one tensor."""
        rows = zip(self.fields, self._leaves(space), *parts, strict=True)
        return joined(*[getattr(field, name)(leaf, *row) for field, leaf, *row in rows])

    def _leaves(self, space: Manifold) -> list[Any]:
        return [leaf for leaf, _ in space.leaves(self.dim)]


class FieldNetwork(nn.Module):
    """A network of points and other numbers, with its derivatives in directions of the points.

    It sees the points beside cosines and sines of random waves, whose lengths are learned. The last layer starts from
    zero.

    :param size: how many numbers a point has, and how many outputs there are.
    :param others: how many other numbers there are.
    :param hidden_dims: the sizes of the hidden layers.
    :param waves: how many waves.
    :param resolution: one over the largest wave number at first; the smallest is 1.
    """

    def __init__(self, size: int, others: int, hidden_dims: Sequence[int], waves: int, resolution: float) -> None:
        super().__init__()
        numbers = torch.linspace(0.0, -math.log(resolution), waves).exp()
        self.waves = nn.Parameter(torch.randn(size, waves) * numbers)
        sizes = [size + 2 * waves + others, *hidden_dims, size]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        last: Any = self.layers[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor, others: Tensor, directions: Tensor | None = None) -> tuple[Tensor, Any]:
        """Outputs ``(..., size)``, and their derivatives in directions ``(n, ..., size)``, ``None`` without.

        They are taken forward, layer by layer: the derivatives of all outputs in few directions are wanted.
        """
        dtype = x.dtype
        inputs, slopes = x.to(self.waves.dtype), None if directions is None else directions.to(self.waves.dtype)
        # Short waves need all digits of a point.
        angle = einsum("...i,ij->...j", inputs, self.waves)
        cos, sin = angle.cos(), angle.sin()
        h = joined(inputs, cos, sin, others.to(inputs.dtype))
        if slopes is not None:
            turn = einsum("...i,ij->...j", slopes, self.waves)
            slopes = F.pad(torch.cat([slopes, -sin * turn, cos * turn], -1), (0, others.shape[-1]))
        layers: list[Any] = list(self.layers)
        for layer in layers[:-1]:
            h = layer(h)
            share = h.sigmoid()
            if slopes is not None:
                slopes = share * (1 + h * (1 - share)) * (slopes @ layer.weight.mT)
            h = h * share
        h = layers[-1](h)
        return h.to(dtype), None if slopes is None else (slopes @ layers[-1].weight.mT).to(dtype)


def late(u: Any) -> Any:
    """Times from numbers between 0 and 1, denser towards the end, where a field that concentrates is steep."""
    return 1 - (1 - u) ** 2


def _clock(time: Tensor, context: Tensor) -> Tensor:
    """Functions of time ``(..., 1)``, and the context."""
    angles = [math.pi * 2**octave * time for octave in range(_CLOCK)]
    return joined(time, *[wave for angle in angles for wave in (angle.cos(), angle.sin())], context)


def continuous_flow(
    space: Manifold,
    dim: int,
    *,
    hidden_dims: Sequence[int] = (64, 64),
    steps: int = 16,
    waves: int = 32,
    resolution: float = 0.1,
) -> ManifoldFlow:
    r"""A trainable transform of a space onto itself, which carries points along a vector field from time 0 to 1.

    .. math:: \dot x = u_t(x), \qquad \frac{d}{dt}\log q_t(x) = -\operatorname{div} u_t(x)

    It is used as :func:`manifold_flow` is, and starts as the identity too. The field is a network of the point and the
    time, which is smooth on the whole space: on a sphere there are no axes and no poles. Train it by
    :func:`~pyro_hyperbolic.infer.flow_matching`, which follows no point. Or train it by its density like any other
    flow, at a hundred evaluations of its network with derivatives a step; then couplings are faster, and exact.

    The solver is the fourth-order one of Runge and Kutta, in coordinates in which its stages can be added and nothing
    cancels (:mod:`~pyro_hyperbolic.distributions.flow_fields`); spheres are returned to after each stage. It needs four
    evaluations a step, and its error falls like ``steps**-4``, in the inverse and in the integral of the density too.
    Steps are shorter towards time 1. The divergence is exact, and in the volume of the space.

    Spaces are those of constant curvature, of either sign, and their products. Lengths are those of the space, except
    on spheres, where the flow is that of the unit sphere for every ``c``.

    :param space: the space; for a curvature that is learned or drawn, write ``flow.on(space)``.
    :param dim: its dimension.
    :param hidden_dims: sizes of the hidden layers of the network.
    :param steps: of the solver. It may be changed later: ``flow.layers.steps = 64``. A compiled step unrolls them all.
    :param waves: how many random waves the network sees beside the coordinates, as in Tancik et al., *Fourier features
        let networks learn high frequency functions in low dimensional domains* (2020).
    :param resolution: the length that the shortest of them can tell apart at first; the longest has 1.

    >>> import pyro.distributions as dist
    >>> from pyro_hyperbolic import Sphere
    >>> from pyro_hyperbolic.distributions import HypersphericalUniform
    >>> _ = torch.manual_seed(0)
    >>> flow = continuous_flow(Sphere(1.0), 2)
    >>> flow
    ManifoldFlow(Sphere(c=1.0), steps=16)
    >>> q = dist.TransformedDistribution(HypersphericalUniform(3), [flow])
    >>> q.log_prob(q.rsample((5,))).shape
    torch.Size([5])
    """
    return ManifoldFlow(_made(space, dim, 0, hidden_dims, steps, waves, resolution), space)


def conditional_continuous_flow(
    space: Manifold,
    dim: int,
    context_dim: int,
    *,
    hidden_dims: Sequence[int] = (64, 64),
    steps: int = 16,
    waves: int = 32,
    resolution: float = 0.1,
) -> ConditionalManifoldFlow:
    """As :func:`continuous_flow`, with a field that is a function of a context too.

    :param context_dim: how many numbers a context has. The others as there; for a curvature that is learned or drawn
        write ``flow.condition(context, space)``.

    >>> from pyro_hyperbolic import PoincareBall
    >>> flow = conditional_continuous_flow(PoincareBall(1.0), 2, context_dim=4)
    >>> flow.condition(torch.randn(5, 4))(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """
    context_dim = checked_integer("context_dim", context_dim, least=1)
    return ConditionalManifoldFlow(_made(space, dim, context_dim, hidden_dims, steps, waves, resolution), space)


def _made(
    space: Manifold,
    dim: int,
    context_dim: int,
    hidden_dims: Sequence[int],
    steps: int,
    waves: int,
    resolution: float,
) -> FlowField:
    dim, hidden_dims = checked_sizes(space, dim, hidden_dims)
    if not (is_number(resolution) and 0 < resolution < math.inf):
        raise ValueError(f"resolution must be a positive number, got {resolution!r}; pass the length of details.")
    return FlowField(
        space,
        dim,
        context_dim,
        hidden_dims=hidden_dims,
        steps=checked_integer("steps", steps, least=1),
        waves=checked_integer("waves", waves, least=0),
        resolution=float(resolution),
    )
