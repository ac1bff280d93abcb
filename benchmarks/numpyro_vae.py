"""The rival of :mod:`benchmarks.numpyro`: the same auto-encoder in NumPyro, with a wrapped normal written by hand.

Encoder 784-600-(d, 1), gyroplane decoder d-600-784, Bernoulli likelihood. The whole training is one jitted program: a
scan over steps, with the members of an ensemble by ``vmap``. Formulae are the straightforward ones, in float32.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import lax, random
from numpyro.distributions import constraints
from numpyro.infer import SVI, Trace_ELBO

C = 0.2
_ROOT = math.sqrt(C)
_TINY = 1e-12


def _norm(x: Any) -> Any:
    return jnp.sqrt(jnp.sum(x * x, -1, keepdims=True) + _TINY)


def _gap(x: Any) -> Any:
    return 1 - C * jnp.sum(x * x, -1, keepdims=True)


def exp0(v: Any) -> Any:
    length = _norm(v)
    return jnp.tanh(_ROOT * length) * v / (_ROOT * length)


def mobius_add(x: Any, y: Any) -> Any:
    s = x + y
    square = C * jnp.sum(s * s, -1, keepdims=True)
    return (_gap(x) * s + square * x) / (_gap(x) * _gap(y) + square)


def half_log(x: Any, y: Any) -> Any:
    s = y - x
    square, gaps = jnp.sum(s * s, -1, keepdims=True), _gap(x) * _gap(y)
    u = C * square / gaps + _TINY
    root = jnp.sqrt(u)
    return jnp.arcsinh(root) / root / jnp.sqrt(1 + u) * (_gap(x) * s - C * square * x) / gaps


def point(v: Any) -> Any:
    """The point of the ball of curvature -1 with these normal coordinates at the origin."""
    length = _norm(v)
    return jnp.tanh(length / 2) * v / length


def distance(x: Any, y: Any) -> Any:
    """On the ball of curvature -1."""
    gaps = (1 - jnp.sum(x * x, -1)) * (1 - jnp.sum(y * y, -1))
    return 2 * jnp.arcsinh(jnp.sqrt(jnp.sum((x - y) ** 2, -1) / gaps + _TINY))


def _log_sinhc(r: Any) -> Any:
    r = _ROOT * r
    return r + jnp.log1p(-jnp.exp(-2 * r)) - math.log(2) - jnp.log(r)


class Wrapped(dist.Distribution):
    support = constraints.real_vector
    reparametrized_params = ["loc", "scale"]
    arg_constraints = {"loc": constraints.real_vector, "scale": constraints.positive}

    def __init__(self, loc: Any, scale: Any, validate_args: Any = None) -> None:
        self.loc, self.scale = loc, scale
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=validate_args)

    def sample(self, key: Any, sample_shape: Any = ()) -> Any:
        v = self.scale * random.normal(key, sample_shape + self.batch_shape + self.event_shape)
        return mobius_add(self.loc, exp0(v / 2))

    def log_prob(self, z: Any) -> Any:
        v = 2 * half_log(self.loc, z)
        d = v.shape[-1]
        gauss = -0.5 * jnp.sum((v / self.scale) ** 2, -1) - d * jnp.log(self.scale[..., 0])
        return gauss - d / 2 * math.log(2 * math.pi) - (d - 1) * _log_sinhc(_norm(v))[..., 0]


def _dense(key: Any, inputs: int, outputs: int) -> dict[str, Any]:
    weight = random.uniform(key, (inputs, outputs), minval=-1, maxval=1) / math.sqrt(inputs)
    return {"w": weight, "b": jnp.zeros(outputs)}


class Rival:
    """Training and evaluation of the auto-encoder.

    :param images: ``(N, 784)``.
    """

    def __init__(self, images: Any, batch: int, dim: int, hidden: int) -> None:
        self.images, self.batch, self.dim, self.hidden = images, batch, dim, hidden
        self.svi = SVI(self.model, self.guide, numpyro.optim.Adam(5e-4), Trace_ELBO())

    def weights(self, key: Any) -> dict[str, Any]:
        keys = random.split(key, 6)
        bound = 1 / math.sqrt(self.dim)
        return {
            "hidden": _dense(keys[0], self.images.shape[1], self.hidden),
            "loc": _dense(keys[1], self.hidden, self.dim),
            "scale": _dense(keys[2], self.hidden, 1),
            "normals": {"w": random.uniform(keys[3], (self.hidden, self.dim), minval=-bound, maxval=bound)},
            "offsets": {"w": 0.1 * random.normal(keys[4], (self.hidden, self.dim))},
            "out": _dense(keys[5], self.hidden, self.images.shape[1]),
        }

    @staticmethod
    def _registered(weights: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        return {n: {k: numpyro.param(f"{n}_{k}", v) for k, v in weights[n].items()} for n in names}

    def decode(self, z: Any, w: dict[str, Any]) -> Any:
        p, normal = exp0(w["offsets"]["w"]), w["normals"]["w"]
        length = _norm(normal)
        unit = normal / length
        b = 2 * jnp.sum(p * unit, -1, keepdims=True) / _gap(p)
        plane = jnp.concatenate([2 * unit + 2 * C * b * p, -b], -1)
        point = jnp.concatenate([z / _gap(z), (2 - _gap(z)) / _gap(z)], -1)
        distances = 2 * length[:, 0] * jnp.arcsinh(_ROOT * (point @ plane.T)) / _ROOT
        return jax.nn.relu(distances) @ w["out"]["w"] + w["out"]["b"]

    def posterior(self, x: Any, w: dict[str, Any]) -> Wrapped:
        hidden = jax.nn.relu(x @ w["hidden"]["w"] + w["hidden"]["b"])
        loc = exp0(hidden @ w["loc"]["w"] + w["loc"]["b"])
        return Wrapped(loc, jax.nn.softplus(hidden @ w["scale"]["w"] + w["scale"]["b"]))

    def log_likelihood(self, x: Any, z: Any, w: dict[str, Any]) -> Any:
        logits = self.decode(z, w)
        return jnp.sum(x * logits - jax.nn.softplus(logits), -1)

    def prior(self, count: int) -> Wrapped:
        return Wrapped(jnp.zeros((count, self.dim)), jnp.ones((1, 1)))

    def model(self, x: Any, weights: dict[str, Any]) -> None:
        w = self._registered(weights, ("normals", "offsets", "out"))
        with numpyro.plate("data", x.shape[0]):
            z = numpyro.sample("z", self.prior(x.shape[0]))
            numpyro.factor("x", self.log_likelihood(x, z, w))

    def guide(self, x: Any, weights: dict[str, Any]) -> None:
        w = self._registered(weights, ("hidden", "loc", "scale"))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("z", self.posterior(x, w))

    def step(self, state: Any, key: Any) -> Any:
        """One step with a batch that is drawn with replacement."""
        x = self.images[random.randint(key, (self.batch,), 0, self.images.shape[0])]
        # The values of a parameter that has been made are its own: these only have the shapes.
        return self.svi.update(state, x, self.shapes)

    def start(self, members: int | None, seed: int = 0) -> Any:
        """The state of one model, or of so many."""
        key = random.PRNGKey(seed)
        self.shapes = self.weights(key)

        def begin(key: Any) -> Any:
            return self.svi.init(key, self.images[: self.batch], self.weights(key))

        return begin(key) if members is None else jax.vmap(begin)(random.split(key, members))

    def scan(self, members: int | None) -> Any:
        """A jitted function of a state and the keys of many steps, to the new state and the losses."""

        def one(state: Any, key: Any) -> Any:
            if members is None:
                return self.step(state, key)
            return jax.vmap(self.step)(state, random.split(key, members))

        return jax.jit(lambda state, keys: lax.scan(one, state, keys))

    def iwae(self, params: dict[str, Any], num_samples: int, width: int) -> Any:
        """A jitted function of images and a key, to their IWAE estimates; so many images at a time."""
        w: dict[str, Any] = {}
        for name, value in params.items():
            part, kind = name.rsplit("_", 1)
            w.setdefault(part, {})[kind] = value

        def some(x: Any, key: Any) -> Any:
            posterior = self.posterior(x, w)
            z = posterior.sample(key, (num_samples,))
            log_weight = self.log_likelihood(x, z, w) + self.prior(1).log_prob(z) - posterior.log_prob(z)
            return jax.scipy.special.logsumexp(log_weight, 0) - math.log(num_samples)

        def all_images(x: Any, key: Any) -> Any:
            parts = x.reshape(-1, width, x.shape[-1])
            return lax.map(lambda pair: some(*pair), (parts, random.split(key, len(parts)))).reshape(-1)

        return jax.jit(all_images)
