r"""The paper's rejection samplers for the radius of the Riemannian normal.

The package does not sample this way. ``HyperbolicRadius.rsample`` inverts the distribution function, which takes the
same work for every parameter and has gradients. A rejection loop can be neither vmapped nor captured in a CUDA graph.
The three samplers of the paper's appendix ("Sampling hyperbolic radii") are here so that you can check its claim about
their acceptance rates:

>>> from pyro_hyperbolic.distributions import HyperbolicRadius
>>> for dim, scale in [(2, 0.1), (10, 0.1), (50, 0.1), (2, 1.0), (10, 1.0), (50, 1.0)]:
...     rates = [float(acceptance_rate(HyperbolicRadius(dim, scale, 1.0), name)) for name in PROPOSALS]
...     print(f"{dim:<2} {scale}", *(f"{rate:8.3g}" for rate in rates))
2  0.1    0.987    0.148    0.608
10 0.1    0.995 7.46e-05    0.227
50 0.1    0.996 1.12e-07  0.00568
2  1.0    0.987    0.811    0.681
10 1.0    0.996        1  0.00187
50 1.0    0.996        1 3.98e-20

The columns are the proposals in the order of :data:`PROPOSALS`. The rate of the first is above 0.96 everywhere. The
others fall to nothing: the truncated normal for small :math:`\sqrt{c}\,\sigma`, and the Gamma for large ``d`` or
:math:`\sqrt{c}\,\sigma`.

A proposal is an unnormalised density :math:`e(y) \ge e^{h(y)}`, an envelope of the distribution of the scaled radius
:math:`y = r/\sigma` in the notation of :mod:`pyro_hyperbolic.ops.radial`. A draw ``y`` from it is kept with probability
:math:`e^{h(y)}/e(y)`. The share that is kept is :math:`1/M = I(q) / \int e`. All computations use logarithms and
float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from pyro_hyperbolic.distributions.hyperbolic_radius import HyperbolicRadius
from pyro_hyperbolic.ops import radial
from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.ops.special import tanhc

_LOWEST_RATE = 1e-5  # at some 10^6 proposals a second it gives ten samples a second; less is no sampler
_CHUNK = 1 << 20  # proposals of one round, which bounds the memory
_SURPLUS = 1.1  # proposals beyond the expected number, so that one round mostly suffices
_SPARE_ROUNDS = 20

# The paper's grid: "For our experiments we chose ...".
_ETA_MIN, _ETA_MAX, _NUM_TANGENTS = 0.1, 3.0, 20


class RejectionSample(NamedTuple):
    """Radii, and the number of proposals that they took.

    :param samples: ``(num_samples,)``, in the dtype of the distribution.
    :param acceptance_rate: share of the proposals that were accepted.
    :param num_proposed: number of proposals.
    """

    samples: Tensor
    acceptance_rate: float
    num_proposed: int


def sample_radius(
    radius: HyperbolicRadius,
    num_samples: int,
    proposal: str = "piecewise_exponential",
    generator: Generator | None = None,
) -> RejectionSample:
    r"""Draw radii by rejection (the paper's appendix, "Sampling hyperbolic radii").

    Proposals :math:`y` are drawn from :math:`g \propto e` and kept where :math:`\log u < h(y) - \log e(y)`. The
    samples carry no gradient.

    :param radius: the distribution, with batch shape ``()``.
    :param num_samples: how many radii.
    :param proposal: a key of :data:`PROPOSALS`: ``"piecewise_exponential"``, ``"truncated_normal"`` or ``"gamma"``.
    :param generator: source of randomness, on the device of the distribution; by default torch's own.
    :raises RuntimeError: if the expected acceptance rate is below 1e-5.

    Shapes: ``samples`` is ``(num_samples,)``.

    >>> from pyro_hyperbolic.distributions import HyperbolicRadius
    >>> drawn = sample_radius(HyperbolicRadius(5, 1.0, 1.0), 1000)
    >>> drawn.samples.shape, drawn.acceptance_rate > 0.9
    (torch.Size([1000]), True)
    """
    num_samples = checked_integer("sample_radius: num_samples", num_samples, least=1)
    envelope = _build("sample_radius", radius, proposal)
    rate = float(envelope.acceptance_rate)
    if rate < _LOWEST_RATE:
        raise RuntimeError(_hopeless(radius, proposal, f"accepts {rate:.2g} of its proposals"))

    rounds = _SPARE_ROUNDS + math.ceil(2 * num_samples / (rate * _CHUNK))
    kept: list[Tensor] = []
    num_kept = num_proposed = 0
    for _ in range(rounds):
        count = min(_CHUNK, math.ceil(_SURPLUS * (num_samples - num_kept) / rate) + 16)
        y = envelope.draw(count, generator)
        accepted = y[_open_uniform(count, y, generator).log() < envelope.log_ratio(y)]
        kept.append(accepted)
        num_kept += len(accepted)
        num_proposed += count
        if num_kept >= num_samples:
            samples = radius.scale.detach() * torch.cat(kept)[:num_samples]
            return RejectionSample(samples.to(radius.scale.dtype), num_kept / num_proposed, num_proposed)
    found = f"accepted {num_kept} of {num_proposed} proposals, where a rate of {rate:.2g} was expected,"
    raise RuntimeError(_hopeless(radius, proposal, found))


def acceptance_rate(radius: HyperbolicRadius, proposal: str = "piecewise_exponential") -> Tensor:
    r"""Expected acceptance rate :math:`1/M` of a proposal.

    .. math:: \frac{1}{M} = \inf_r \frac{g(r)}{\rho(r)} = \frac{I(q)}{\int_0^\infty e(y)\,dy}

    with :math:`I(q) = Z_r / \sigma^d`. It is 0 where the ratio :math:`\rho/g` has no bound: for the Gamma proposal in
    one dimension, and for the truncated normal at ``c = 0`` in more than one.

    :param radius: the distribution, with batch shape ``()``.
    :param proposal: a key of :data:`PROPOSALS`.

    Shapes: the result is ``()``, in the dtype of the distribution.

    >>> from pyro_hyperbolic.distributions import HyperbolicRadius
    >>> acceptance_rate(HyperbolicRadius(2, 1.0, 1.0), "gamma")
    tensor(0.6813)
    """
    return _build("acceptance_rate", radius, proposal).acceptance_rate.to(radius.scale.dtype)


class Envelope(ABC):
    r"""An upper bound :math:`e(y)` of :math:`e^{h(y)}` that can be integrated and drawn from.

    :param q: :math:`c\sigma^2`, a float64 tensor ``()``.
    :param n: :math:`d - 1`.
    """

    log_integral: Tensor  # of e over the half-line; infinite if there is no bound of this form

    def __init__(self, q: Tensor, n: int) -> None:
        self.q, self.n = q, n

    @property
    def acceptance_rate(self) -> Tensor:
        # In one dimension the truncated normal is the distribution itself: rounding must not make the rate exceed 1.
        return (radial.log_integral(self.q, self.n) - self.log_integral).exp().clamp(max=1)

    @abstractmethod
    def log_ratio(self, y: Tensor) -> Tensor:
        r""":math:`h(y) - \log e(y) \le 0`."""

    @abstractmethod
    def draw(self, count: int, generator: Generator | None) -> Tensor:
        """Draws from the density proportional to the envelope, ``(count,)``."""


class PiecewiseExponential(Envelope):
    r"""The least of the tangents of :math:`h` at 20 points: an envelope because :math:`h` is concave.

    This is the proposal of adaptive rejection sampling, without the adaptation. The tangents touch at

    .. math:: x_k = m + \eta_k \min(s, 0.95\,m/\eta_{max}), \qquad \eta = (-3, \dots, -0.1, 0.1, \dots, 3)

    with the mean ``m`` and standard deviation ``s`` of the distribution. (The paper prints both halves of the grid as
    positive. Its factor :math:`0.95\,m/\eta_{max}`, which keeps :math:`x_1` positive, shows that the first half is
    meant to be negative.)
    """

    def __init__(self, q: Tensor, n: int) -> None:
        super().__init__(q, n)
        distribution = HyperbolicRadius(n + 1, torch.ones_like(q), q, validate_args=False)
        half = torch.linspace(_ETA_MIN, _ETA_MAX, _NUM_TANGENTS // 2, dtype=q.dtype, device=q.device)
        mean, deviation = distribution.mean, distribution.variance.sqrt()
        x = mean + torch.minimum(deviation, 0.95 * mean / _ETA_MAX) * torch.cat([-half.flip(0), half])

        height = radial.log_kernel(x, q, n)
        slope = n / (x * tanhc(q * x * x)) - x
        # Tangents k and k + 1 meet between their points; the slopes differ by at least x_{k+1} - x_k as h'' <= -1.
        gap = x.diff()
        meet = x[:-1] + (height.diff() - slope[1:] * gap) / -slope.diff()
        self._breaks = torch.minimum(torch.maximum(meet, x[:-1]), x[1:])
        self._points, self._heights, self._slopes = x, height, slope

        ends = torch.cat([x.new_zeros(1), self._breaks, x.new_full((1,), math.inf)])
        self._left, self._right = ends[:-1], ends[1:]
        # A piece is written from its higher end, so that its exponential only decays.
        self._rising = slope > 0
        self._rate = slope.abs()
        top = torch.where(self._rising, self._right, self._left)
        self._width = self._right - self._left
        flat = self._rate == 0
        decayed = -torch.expm1(-self._rate * self._width) / torch.where(flat, 1.0, self._rate)
        self._log_masses = height + slope * (top - x) + torch.where(flat, self._width, decayed).log()
        self.log_integral = self._log_masses.logsumexp(0)

    def log_ratio(self, y: Tensor) -> Tensor:
        k = torch.searchsorted(self._breaks, y)
        tangent = self._heights[k] + self._slopes[k] * (y - self._points[k])
        return radial.log_kernel(y, self.q, self.n) - tangent

    def draw(self, count: int, generator: Generator | None) -> Tensor:
        k = torch.multinomial(self._log_masses.softmax(0), count, replacement=True, generator=generator)
        u = _open_uniform(count, self.q, generator)
        rate, width = self._rate[k], self._width[k]
        flat = rate == 0
        # u + (1 - u) exp(-rate width) is uniform between the values of the exponential at its two ends.
        decayed = -torch.log1p((1 - u) * torch.expm1(-rate * width)) / torch.where(flat, 1.0, rate)
        depth = torch.where(flat, u * width, decayed)
        return torch.where(self._rising[k], self._right[k] - depth, self._left[k] + depth)


class TruncatedNormal(Envelope):
    r"""A normal with mean :math:`(d-1)\sqrt{c}\,\sigma^2` and variance :math:`\sigma^2` on the half-line.

    With :math:`\sinh s \le e^s/2`

    .. math::

        h(y) = -\tfrac{y^2}{2} + n\sqrt{q}\,y - n\log(2\sqrt{q}) + n\log(1 - e^{-2\sqrt{q}\,y}), \qquad
        M = \frac{\sqrt{2\pi}\,\Phi(n\sqrt{q})}{I(q)} \frac{e^{n^2q/2}}{(2\sqrt{q})^n} ,

    which is the paper's constant. The last term of ``h`` tends to 0, so no smaller constant is possible. The rate
    :math:`\operatorname{E}_g (1 - e^{-2\sqrt{q}\,y})^n` is poor where the mass lies at :math:`\sqrt{c}\,r` of order one
    or less, that is for *small* :math:`\sqrt{c}\,\sigma`. It falls like :math:`q^{n/2}` as :math:`q \to 0`, and faster
    for larger ``d``. For large :math:`(d-1)\,c\,\sigma^2` it tends to 1, contrary to the paper's remark that it does
    not scale with ``d`` and :math:`\sigma`.
    """

    def __init__(self, q: Tensor, n: int) -> None:
        super().__init__(q, n)
        self._root = q.sqrt()
        self._loc = n * self._root
        power = torch.xlogy(torch.full_like(q, n), 2 * self._root)
        half_line = 0.5 * math.log(2 * math.pi) + torch.special.log_ndtr(self._loc)
        self.log_integral = 0.5 * self._loc.square() - power + half_line

    def log_ratio(self, y: Tensor) -> Tensor:
        return torch.xlogy(torch.full_like(y, self.n), -torch.expm1(-2 * self._root * y))

    def draw(self, count: int, generator: Generator | None) -> Tensor:
        # Inversion of the upper tail, P(Y > y) = Phi(loc - y) / Phi(loc); a last digit may land below 0.
        u = _open_uniform(count, self.q, generator)
        return (self._loc - torch.special.ndtri(u * torch.special.ndtr(self._loc))).clamp(min=0)


class Gamma(Envelope):
    r"""The Gamma distribution with shape 2 and scale :math:`\sigma`: :math:`g(y) = y e^{-y}`.

    .. math:: M = \frac{1}{I(q)} \sup_y e^{u(y)}, \qquad
        u(y) = h(y) - \log(y e^{-y}) = -\tfrac{y^2}{2} + y + (n - 1)\log y + n\log\frac{\sinh(\sqrt{q}\,y)}{\sqrt{q}\,y}

    **This is not the constant printed in the paper**,
    :math:`\frac{\sigma^2}{Z_r} c^{(d-1)/2} \exp\tfrac12((d-1)\sqrt{c}\,\sigma + 1)^2`. Its derivation leaves out the
    factor :math:`c^{-(d-1)/2}` of the density, so a power of ``c`` remains that should cancel. It also merges
    :math:`\log r`, which ``g`` has once, into a term counted ``d - 1`` times, so :math:`(d-2)\log r` is lost. (With the
    first slip corrected, the constant is a bound for ``d = 2``, but not for ``d > 2``.) So the printed constant depends
    on the unit of length: at fixed :math:`\sqrt{c}\,\sigma`, which together with ``d`` determines the rate, it is
    proportional to :math:`c^{d-3/2}`. For :math:`c \ge 1` it is a loose bound. As :math:`c \to 0` it falls below 1.
    Here we use the supremum itself, the least possible constant. It exists for ``d >= 2``. In one dimension the density
    does not vanish at 0 as ``g`` does.

    The rate falls with ``d`` and :math:`\sigma`: for a large mode :math:`\mu = (d-1)\sqrt{c}\,\sigma` it is
    :math:`\sqrt{2\pi}\,\mu\,e^{-\mu-1/2}`.
    """

    def __init__(self, q: Tensor, n: int) -> None:
        super().__init__(q, n)
        # As g integrates to 1, the envelope's integral is its factor.
        self.log_integral = torch.full_like(q, math.inf)
        if n > 0:
            self.log_integral = self._log_density_ratio(q.new_tensor(_gamma_argmax(float(q), n)))

    def _log_density_ratio(self, y: Tensor) -> Tensor:
        return radial.log_kernel(y, self.q, self.n) - y.log() + y

    def log_ratio(self, y: Tensor) -> Tensor:
        return self._log_density_ratio(y) - self.log_integral

    def draw(self, count: int, generator: Generator | None) -> Tensor:
        # A Gamma variable of shape 2 is the sum of two exponential ones.
        return -_open_uniform((2, count), self.q, generator).log().sum(0)


def _gamma_argmax(q: float, n: int) -> float:
    """Where :math:`u(y) = h(y) - \\log y + y` is greatest, for ``n >= 1``."""
    # With s = sqrt(q) y, u' = 0 reads (1 - 1/y - (n-1)/y^2) - n q (coth(s) - 1/s)/s = 0. The first term increases and
    # the second decreases in y, so there is one root, and 0 <= coth(s) - 1/s <= 1 brackets it. Multiplied by y^2 the
    # equation is y^2 - y + 1 = n s coth(s).
    root = math.sqrt(q)
    low, high = (0.5 * (b + math.sqrt(b * b + 4 * (n - 1))) for b in (1.0, 1 + n * root))
    for _ in range(60):
        y = 0.5 * (low + high)
        s = root * y
        if y * y - y + 1 > n * (s / math.tanh(s) if s > 0 else 1.0):
            high = y
        else:
            low = y
    return 0.5 * (low + high)


PROPOSALS: dict[str, Callable[[Tensor, int], Envelope]] = {
    "piecewise_exponential": PiecewiseExponential,
    "truncated_normal": TruncatedNormal,
    "gamma": Gamma,
}


def _build(caller: str, radius: HyperbolicRadius, proposal: str) -> Envelope:
    if proposal not in PROPOSALS:
        raise ValueError(f"{caller}: proposal must be one of {', '.join(map(repr, PROPOSALS))}, got {proposal!r}.")
    if radius.batch_shape != ():
        raise ValueError(
            f"{caller}: radius must have batch shape (), got {tuple(radius.batch_shape)}: every element has its own"
            " envelope. Pass one distribution at a time, or draw batches by HyperbolicRadius.rsample."
        )
    scale, c = radius.scale.detach().double(), radius.c.detach().double()
    return PROPOSALS[proposal](c * scale.square(), radius.dim - 1)


def _open_uniform(shape: int | tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
    """Uniform on (0, 1], whose logarithm is finite."""
    return 1 - torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)


def _hopeless(radius: HyperbolicRadius, proposal: str, found: str) -> str:
    given = f"dim={radius.dim}, scale={float(radius.scale):.4g}, c={float(radius.c):.4g}"
    return (
        f"sample_radius: the {proposal} proposal {found} for HyperbolicRadius({given}). Use HyperbolicRadius.rsample,"
        ' which rejects nothing, or proposal="piecewise_exponential".'
    )
