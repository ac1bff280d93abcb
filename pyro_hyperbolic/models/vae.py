"""Variational auto-encoders whose latent space is hyperbolic, and their Euclidean twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.util import is_validation_enabled
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_hyperbolic.geometry import Euclidean, Manifold
from pyro_hyperbolic.models.latent import HyperbolicLatent, Latent, check_choice
from pyro_hyperbolic.models.params import register
from pyro_hyperbolic.nn import Decoder, Encoder, ManifoldModule, build_decoder
from pyro_hyperbolic.ops.checks import inspectable


def _bernoulli(output: Tensor) -> Any:
    # Grey levels are allowed as targets, as in the paper: the log-density is the negative cross entropy.
    return dist.Bernoulli(logits=output, validate_args=False)


def _normal(output: Tensor) -> Any:
    return dist.Normal(output, 1.0)


LIKELIHOODS: dict[str, Callable[[Tensor], Any]] = {"bernoulli": _bernoulli, "normal": _normal}
"""Likelihoods by name: from the decoder's output to a law of the data."""


class VAE(PyroModule):
    """What the auto-encoders share: the Pyro programs. A subclass chooses the latent space and the networks.

    The latent site is ``"z"``, the plate ``"data"``, the observed site ``"x"``. Both programs take

    * ``x``: data ``(N, *data_shape)``; ``None`` in the model draws the data instead of observing it;
    * ``data_size``: the size of the whole data set when ``x`` is a minibatch of it: log-densities are scaled by
      ``data_size / N``. With ``x = None``, the number of data to draw;
    * ``subsample_size``: draw a minibatch of this size from ``x`` inside the program, with Pyro's own subsampling.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: Decoder,
        latent: Latent,
        likelihood: str,
    ) -> None:
        super().__init__()
        check_choice("likelihood", likelihood, LIKELIHOODS)
        self.encoder = encoder
        self.decoder = decoder
        self.likelihood = likelihood
        self.latent = latent

    def prior(self) -> Any:
        """The law p(z) of one latent."""
        return self.latent.prior()

    def encode(self, x: Tensor) -> Any:
        """The posterior q(z | x), batch shape ``(N,)``."""
        return self.latent.posterior(*self.encoder(x))

    def decode(self, z: Tensor) -> Any:
        """The likelihood p(x | z), event shape ``data_shape``."""
        law = LIKELIHOODS[self.likelihood](self.decoder(z))
        return law.to_event(len(self.decoder.data_shape))

    def model(self, x: Tensor | None = None, data_size: int | None = None, subsample_size: int | None = None) -> Tensor:
        """The joint law of latents and data; see the class for the arguments."""
        register(latent=self.latent, decoder=self.decoder)
        with self._plate(x, data_size, subsample_size) as index:
            z = self.sample_latent()
            observed = None if x is None else self._batch(x, index, subsample_size)
            if observed is not None and self.likelihood == "bernoulli":
                _check_grey_levels(observed)
            pyro.sample("x", self.decode(z), obs=observed)
        return z

    def sample_latent(self) -> Tensor:
        """The site ``"z"`` of the model, inside its plate; a subclass may add the sites that it depends on."""
        return pyro.sample("z", self.prior())

    def guide(self, x: Tensor, data_size: int | None = None, subsample_size: int | None = None) -> Tensor:
        """The variational posterior; see the class for the arguments."""
        register(latent=self.latent, encoder=self.encoder)
        with self._plate(x, data_size, subsample_size) as index:
            return pyro.sample("z", self.encode(self._batch(x, index, subsample_size)))

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """The mean of p(x | z) at the posterior mean, shaped as ``x``."""
        return self.decode(self.encode(x).mean).mean

    @torch.no_grad()
    def generate(self, n: int) -> Tensor:
        """Means of p(x | z) for ``n`` draws from the prior, ``(n, *data_shape)``."""
        return self.decode(self.prior().sample((n,))).mean

    @torch.no_grad()
    def init_output_bias(self, x: Tensor) -> None:
        """Set the bias of the last layer so that the decoder starts at the mean of the data (the paper's appendix)."""
        mean = x.flatten(x.dim() - len(self.decoder.data_shape)).mean(0)
        if self.likelihood == "bernoulli":
            # A pixel that is always 0 has no finite logit; half a count in the data is the usual remedy.
            count = 0.5 / len(x)
            mean = torch.logit((mean * (1 - 2 * count) + count).clamp(count, 1 - count))
        self.decoder.output.bias.copy_(mean)

    def _plate(self, x: Tensor | None, data_size: int | None, subsample_size: int | None) -> Any:
        if subsample_size is not None and (x is None or data_size is not None):
            raise ValueError("subsample_size draws from the whole data x: give x, and no data_size.")
        if x is None:
            return pyro.plate("data", 1 if data_size is None else data_size)
        shape = self.decoder.data_shape
        if x.shape[1:] != shape:
            raise ValueError(f"x must have shape (N, {', '.join(map(str, shape))}), got {tuple(x.shape)}.")
        if subsample_size is not None:
            return pyro.plate("data", len(x), subsample_size=subsample_size, device=x.device)
        if data_size is None:
            return pyro.plate("data", len(x))
        if data_size < len(x):
            raise ValueError(f"data_size must be at least the {len(x)} data of the minibatch x, got {data_size}.")
        return pyro.plate("data", data_size, subsample=torch.arange(len(x), device=x.device))

    @staticmethod
    def _batch(x: Tensor, index: Tensor, subsample_size: int | None) -> Tensor:
        return x if subsample_size is None else x[index]


class HyperbolicVAE(VAE):
    r"""The Poincaré VAE (the paper's Section 3) as an ordinary Pyro module.

    .. math:: p(z) = \mathcal{N}(0, \sigma_0^2), \quad p(x \mid z) = p(x \mid f_\theta(z)), \quad
              q(z \mid x) = \mathcal{N}(\exp_0(\mu_\phi(x)), \sigma_\phi(x)^2)

    with a wrapped or Riemannian normal each, on hyperbolic space in either chart or on any other of our spaces.

    :param manifold: the latent space, for example ``PoincareBall(1.4)`` or a signature such as ``"h2,s2,e2"``
        (:func:`~pyro_hyperbolic.geometry.space`); a :class:`~pyro_hyperbolic.nn.ManifoldModule` with
        ``learnable=True`` learns its curvatures.
    :param latent_dim: dimension of the latent space.
    :param data_shape: shape of a datum, ``(28, 28)`` for MNIST; an integer for vectors.
    :param hidden_dim: width of the hidden layers.
    :param prior: ``"wrapped"`` or ``"riemannian"``.
    :param posterior: ``"wrapped"`` or ``"riemannian"``.
    :param decoder: ``"gyroplane"`` (the paper's), ``"logmap"``, ``"mlp"`` or ``"mobius"``.
    :param likelihood: ``"bernoulli"`` (grey levels allowed) or ``"normal"`` (unit variance).
    :param prior_scale: :math:`\sigma_0`.
    :param posterior_scale: ``"isotropic"`` (the paper's) or ``"diagonal"`` (wrapped posterior only).
    :param latent_dtype: dtype of the latent arithmetic; that of the networks by default.
    :param learn_prior_scale: learn :math:`\sigma_0`, starting from ``prior_scale``.

    >>> from pyro_hyperbolic import PoincareBall
    >>> vae = HyperbolicVAE(PoincareBall(1.4), 2, (28, 28))
    >>> x = torch.rand(8, 28, 28)
    >>> loss = pyro.infer.Trace_ELBO().differentiable_loss(vae.model, vae.guide, x)
    >>> vae.encode(x).mean.shape, vae.generate(3).shape
    (torch.Size([8, 2]), torch.Size([3, 28, 28]))
    """

    latent: HyperbolicLatent

    def __init__(
        self,
        manifold: Manifold | ManifoldModule | str,
        latent_dim: int,
        data_shape: tuple[int, ...] | int,
        hidden_dim: int = 600,
        prior: str = "wrapped",
        posterior: str = "wrapped",
        decoder: str = "gyroplane",
        likelihood: str = "bernoulli",
        prior_scale: float = 1.0,
        posterior_scale: str = "isotropic",
        latent_dtype: torch.dtype | None = None,
        learn_prior_scale: bool = False,
    ) -> None:
        shape = _as_shape(data_shape)
        latent = HyperbolicLatent(
            manifold, latent_dim, prior, posterior, prior_scale, posterior_scale, learn_prior_scale, latent_dtype
        )
        super().__init__(
            encoder=Encoder(shape, hidden_dim, latent_dim, latent.scale_dim),
            decoder=build_decoder(decoder, latent.manifold, latent_dim, hidden_dim, shape),
            latent=latent,
            likelihood=likelihood,
        )

    @property
    def manifold(self) -> Manifold:
        """The latent space with its present curvature."""
        return self.latent.manifold()


class EuclideanVAE(HyperbolicVAE):
    r"""The N-VAE: the same programs with a Gaussian latent, the limit of :class:`HyperbolicVAE` as :math:`c \to 0`.

    :class:`HyperbolicVAE` on :class:`~pyro_hyperbolic.Euclidean` with the decoder ``"mlp"``; the arguments are those.

    >>> EuclideanVAE(2, (28, 28)).generate(3).shape
    torch.Size([3, 28, 28])
    """

    def __init__(
        self,
        latent_dim: int,
        data_shape: tuple[int, ...] | int,
        hidden_dim: int = 600,
        likelihood: str = "bernoulli",
        prior_scale: float = 1.0,
        posterior_scale: str = "isotropic",
        learn_prior_scale: bool = False,
    ) -> None:
        super().__init__(
            Euclidean(),
            latent_dim,
            data_shape,
            hidden_dim,
            decoder="mlp",
            likelihood=likelihood,
            prior_scale=prior_scale,
            posterior_scale=posterior_scale,
            learn_prior_scale=learn_prior_scale,
        )


def _check_grey_levels(x: Tensor) -> None:
    """What the support of the Bernoulli law would check, had it not to let grey levels pass."""
    if is_validation_enabled() and inspectable(x) and not bool(((x >= 0) & (x <= 1)).all()):
        low, high = x.min().item(), x.max().item()
        raise ValueError(
            f"x must lie in [0, 1] for the Bernoulli likelihood, got values from {low:g} to {high:g}; scale grey levels"
            " (divide bytes by 255), or use likelihood='normal'."
        )


def _as_shape(data_shape: tuple[int, ...] | int) -> tuple[int, ...]:
    shape = tuple(data_shape) if isinstance(data_shape, (tuple, list)) else (data_shape,)
    if not shape or not all(isinstance(size, int) and size >= 1 for size in shape):
        raise ValueError(f"data_shape must be a positive integer or a tuple of them, got {data_shape!r}.")
    return shape
