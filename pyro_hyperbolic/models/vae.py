"""Variational auto-encoders with latents on a manifold."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.util import is_validation_enabled
from torch import Tensor, nn

from pyro_hyperbolic.accelerate.programs.isolation import isolated
from pyro_hyperbolic.distributions.base import base_distribution
from pyro_hyperbolic.geometry import Euclidean, Manifold
from pyro_hyperbolic.models.latent import Latent, ManifoldLatent, check_posterior, hyperbolic
from pyro_hyperbolic.models.likelihoods import Likelihood, build_likelihood
from pyro_hyperbolic.models.named import NamedModel
from pyro_hyperbolic.models.posterior import PosteriorDraws, Target, data_at, draw_posterior
from pyro_hyperbolic.models.warm_up import WarmUp
from pyro_hyperbolic.nn import Covariates, Decoder, Encoder, ManifoldModule, build_decoder
from pyro_hyperbolic.ops.checks import checked_integer, inspectable, is_number
from pyro_hyperbolic.ops.pareto import FEWEST_WEIGHTS

Values = Mapping[str, Tensor]

# Proposals for each draw of a posterior, and their widths in units of the encoder's.
_PROPOSALS, _FEWEST_PROPOSALS = 10, 1000
_WIDTHS = (1.0, 3.0)


class VAE(NamedModel):
    """Base class of the auto-encoders, with their Pyro programs. A subclass chooses the latent space and the networks.

    The latent site is ``"z"``, its plate is ``"data"``, and the observed site is ``"x"``. Both programs take

    * ``x``: data ``(N, *data_shape)``. With ``None``, the model draws data instead of observing it.
    * ``data_size``: the size of the whole data set, when ``x`` is a minibatch of it. Log-densities are scaled by
      ``data_size / N``. With ``x = None``, it is the number of data to draw.
    * ``subsample_size``: draw a minibatch of this size from ``x`` inside the program, with Pyro's own subsampling.
    * ``covariates``: values ``(N, ...)`` by name, for a model with covariates. Encoder and decoder get them.
    * ``size_factors``: positive numbers ``(N,)`` that multiply the means of counts.

    :param encoder: a module from data, and features of the covariates if there are any, to the location
        ``(N, latent_dim)`` and the positive scale ``(N, latent.scale_dim)`` of a posterior.
    :param decoder: a :class:`~pyro_hyperbolic.nn.Decoder`, or any module from points ``(N, D)``, and features if there
        are any, to the input of the likelihood.
    :param latent: the latent space.
    :param likelihood: a name in ``LIKELIHOODS``, a :class:`Likelihood`, or a function from the decoder's output, and
        the keyword ``size_factors`` if they are given, to a Pyro distribution.
    :param data_shape: shape of a datum; by default the decoder's.
    :param covariates: what is known about every datum.
    :param beta: weight of prior and posterior in the ELBO: a positive number, or a schedule that :meth:`warm_up`
        follows. It is a buffer, so trainers that capture or compile their steps see it change. ``None`` is the plain
        ELBO.
    :param name: name of the model in Pyro's parameter store; by default that of its class
        (:class:`~pyro_hyperbolic.models.named.NamedModel`).
    """

    beta: Tensor | None
    decoder: Any

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        latent: Latent,
        likelihood: str | Likelihood | Callable[..., Any],
        *,
        data_shape: tuple[int, ...] | None = None,
        covariates: Covariates | None = None,
        beta: float | WarmUp | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        _check_covariates(covariates)
        if data_shape is None:
            if not isinstance(decoder, Decoder):
                raise ValueError("data_shape must be given with a decoder of your own.")
            data_shape = decoder.data_shape
        self.data_shape = data_shape
        self.encoder = encoder
        self.decoder = decoder
        self.latent = latent
        self.likelihood = build_likelihood(likelihood, data_shape)
        self.covariates = covariates
        self._schedule = beta if isinstance(beta, WarmUp) else None
        self.register_buffer("beta", None if beta is None else torch.tensor(_positive_weight(beta)))

    def prior(self) -> Any:
        """The distribution p(z) of one latent."""
        if self.latent.log_scale.requires_grad:
            self._check_finite("prior must have a positive and finite scale", self.latent.log_scale.exp().log())
        return self.latent.prior()

    def encode(self, x: Tensor, *, covariates: Values | None = None, size_factors: Tensor | None = None) -> Any:
        """The posterior q(z | x), batch shape ``(N,)``.

        Its ``mean`` is where the model puts the data. On spheres take ``loc``, since a wide posterior there may have
        no mean (:attr:`WrappedNormal.mean <pyro_hyperbolic.distributions.WrappedNormal.mean>`).
        """
        return self.latent.posterior(*self._encoder_output(x, covariates=covariates, size_factors=size_factors))

    def decode(self, z: Tensor, *, covariates: Values | None = None, size_factors: Tensor | None = None) -> Any:
        """The likelihood p(x | z), event shape ``data_shape``.

        With covariates other than those that ``z`` was encoded with, it predicts what the data would have been. A
        value without a dimension holds for all points.
        """
        self.latent.check(z)
        output = self._output(z, *self._features(covariates, z.shape[:-1]))
        self._check_finite("decoder must give a finite output", output)
        distribution = self.likelihood(output, self._sizes(size_factors, z.shape[:-1]))
        distribution = distribution.to_event(max(0, len(distribution.batch_shape) - z.dim() + 1))
        if distribution.event_shape != self.data_shape:
            raise ValueError(
                f"likelihood must give a distribution of data of shape {self.data_shape}, got"
                f" {tuple(distribution.event_shape)}; see what the decoder gives for one point."
            )
        return distribution

    def model(
        self,
        x: Tensor | None = None,
        data_size: int | None = None,
        subsample_size: int | None = None,
        *,
        covariates: Values | None = None,
        size_factors: Tensor | None = None,
    ) -> Tensor:
        """The joint distribution of latents and data; see the class for the arguments."""
        self._register()
        with self._plate(x, data_size, subsample_size, covariates, size_factors) as index:
            with self._weight():
                z = self.sample_latent()
            index = None if subsample_size is None else index
            extra = _rows(index, covariates=covariates, size_factors=size_factors)
            observed = None
            if x is not None:
                observed = self._as_float("x", x if index is None else x[index])
                if is_validation_enabled() and inspectable(observed):
                    self.likelihood.check(observed)
                if extra["size_factors"] is None:
                    extra["size_factors"] = self.size_factors(observed)
            pyro.sample("x", self.decode(z, **extra), obs=observed)
        return z

    def sample_latent(self) -> Tensor:
        """The site ``"z"`` of the model, inside its plate. A subclass may add sites that ``z`` depends on."""
        return pyro.sample("z", self.prior())

    def guide(
        self,
        x: Tensor,
        data_size: int | None = None,
        subsample_size: int | None = None,
        *,
        covariates: Values | None = None,
        size_factors: Tensor | None = None,
    ) -> Tensor:
        """The variational posterior; see the class for the arguments."""
        self._register()
        with self._plate(x, data_size, subsample_size, covariates, size_factors) as index:
            index = None if subsample_size is None else index
            batch = _rows(index, x=x, covariates=covariates, size_factors=size_factors)
            with self._weight():
                return pyro.sample("z", self.encode(**batch))

    def size_factors(self, x: Tensor) -> Tensor | None:
        """The default size factors ``(N,)`` of data; this class has none."""
        return None

    def warm_up(self, step: int) -> None:
        """Set the weight of the divergence to the value of the schedule ``beta`` at a step. The first step is 0."""
        if self._schedule is None or self.beta is None:
            raise ValueError("this model has no schedule; give it one, as in beta=WarmUp(num_steps=1000).")
        self.beta.fill_(self._schedule(step))

    def posterior(
        self,
        x: Tensor,
        num_samples: int = 100,
        *,
        covariates: Values | None = None,
        size_factors: Tensor | None = None,
        num_proposals: int | None = None,
        seed: int | None = None,
        chunk: int | None = None,
        compile: bool = False,
        progress: bool = False,
    ) -> PosteriorDraws:
        r"""Draws from the exact posterior :math:`p(z \mid x_i)` of every datum.

        The posteriors of :meth:`encode` are approximations of one family, by one network for all data, and mostly they
        are too narrow. That is enough for training and for pictures, but not to say how sure of a latent one may be.
        Here they make proposals: half are draws of :meth:`encode`, the others of posteriors three times as wide.
        Importance resampling with the weights :math:`p(x_i, z) / q(z)`, for the mixture :math:`q` of the two, makes
        them draws of the posterior. The weights are smoothed by a Pareto distribution, whose shape ``k`` tells whether
        they can be relied on (:func:`~pyro_hyperbolic.ops.pareto.pareto_smoothed`). Where ``k`` is above 0.7, or the
        effective number of proposals below ``num_samples``, Hamiltonian Monte Carlo moves the draws on: 45 trajectories
        of 3 to 9 steps in a chart around the location of :meth:`encode`, with a step size and a metric for each datum
        that are learned from its chains.

        A mode of the posterior is missed if no proposal has met it. The weight ``beta`` does not count, and the model
        is evaluated as after ``eval()``. In a subclass whose :meth:`sample_latent` has further sites, :meth:`prior` has
        to be the distribution of ``z`` with these summed out.

        :param x: data ``(N, *data_shape)``.
        :param num_samples: draws for each datum.
        :param covariates: as in :meth:`encode`.
        :param size_factors: as in :meth:`encode`.
        :param num_proposals: for each datum, at least 25; by default ten times ``num_samples``, and at least 1,000. For
            fewer than 2,155, ``k`` has to be below :math:`1 - 1/\log_{10}` of their number.
        :param seed: of the random numbers, whose global state then stays as it is; ``None`` goes on with that.
        :param chunk: how many pairs of a datum and a draw are held at a time, but at least those of one datum. By
            default 8,192, and 32,768 on a GPU.
        :param compile: compile the steps of Hamiltonian Monte Carlo, which pays where many data are moved.
        :param progress: show a progress bar.

        >>> _ = torch.manual_seed(0)
        >>> vae = EuclideanVAE(2, 5, 16, likelihood="normal")
        >>> posterior = vae.posterior(torch.randn(8, 5), num_samples=50)
        >>> posterior.samples.shape, posterior.pareto_k.shape
        (torch.Size([50, 8, 2]), torch.Size([8]))
        """
        num_samples = checked_integer("num_samples", num_samples, least=1)
        if num_proposals is None:
            num_proposals = max(_PROPOSALS * num_samples, _FEWEST_PROPOSALS)
        num_proposals = checked_integer("num_proposals", num_proposals, least=FEWEST_WEIGHTS)
        chunk = None if chunk is None else checked_integer("chunk", chunk, least=1)
        self._check_data(x, covariates, size_factors)
        x = self._as_float("x", x)
        if is_validation_enabled():
            self.likelihood.check(x)
        size_factors = self.size_factors(x) if size_factors is None else size_factors
        data: dict[str, Any] = {"x": x}
        data |= {} if covariates is None else {"covariates": dict(covariates)}
        data |= {} if size_factors is None else {"size_factors": size_factors}
        with _evaluated(self), contextlib.nullcontext() if seed is None else isolated():
            if seed is not None:
                torch.manual_seed(checked_integer("seed", seed))
            target = Target(self._proposals, self._log_joint, self.latent.chart)
            return draw_posterior(
                target, data, num_samples, num_proposals, chunk=chunk, compile=compile, progress=progress
            )

    @torch.no_grad()
    def reconstruct(self, x: Tensor, *, covariates: Values | None = None, size_factors: Tensor | None = None) -> Tensor:
        """The mean of p(x | z) at the location of the posterior, with the shape of ``x``."""
        z = base_distribution(self.encode(x, covariates=covariates, size_factors=size_factors)).loc
        size_factors = self.size_factors(self._as_float("x", x)) if size_factors is None else size_factors
        return self.decode(z, covariates=covariates, size_factors=size_factors).mean

    @torch.no_grad()
    def generate(self, n: int, *, covariates: Values | None = None, size_factors: Tensor | None = None) -> Tensor:
        """Means of p(x | z) for ``n`` draws from the prior, ``(n, *data_shape)``."""
        n = checked_integer("n", n, least=0)
        return self.decode(self.prior().sample((n,)), covariates=covariates, size_factors=size_factors).mean

    @torch.no_grad()
    def init_output_bias(self, x: Tensor) -> None:
        """Set the bias of the last layer so that the decoder starts at the mean of the data (the paper's appendix)."""
        if not isinstance(self.decoder, Decoder):
            raise ValueError("init_output_bias needs a decoder by name, whose last layer has one bias per output.")
        x = self._as_float("x", x)
        sizes = self._sizes(self.size_factors(x), self._batch(x, dims=1))
        mean = (x if sizes is None else x / sizes).mean(0)
        self.decoder.output.bias.copy_(self.likelihood.start(mean, len(x)).flatten())

    def _encoder_output(
        self, x: Tensor, *, covariates: Values | None = None, size_factors: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Location and scale of the posterior, as :meth:`Latent.posterior` takes them."""
        x = self._as_float("x", x)
        batch = self._batch(x)
        sizes = self._sizes(self.size_factors(x) if size_factors is None else size_factors, batch)
        features = [f.expand(*batch, f.shape[-1]) for f in self._features(covariates, batch)]
        if isinstance(self.encoder, Encoder):
            self.encoder.check_dtype(x=x, size_factors=sizes)
        parameters = self.encoder(self.likelihood.encoder_input(x, sizes), *features)
        if not isinstance(self.encoder, Encoder):
            check_posterior(parameters, self.latent, batch)
        loc, scale = parameters
        self._check_finite("encoder must give a finite location and a positive scale", loc, scale.log())
        return loc, scale

    def _proposals(self, **data: Any) -> list[Any]:
        """The posterior and wider ones, since encoders are sure of themselves."""
        loc, scale = self._encoder_output(**data)
        return [self.latent.posterior(loc, width * scale) for width in _WIDTHS]

    def _log_joint(
        self, z: Tensor, x: Tensor, covariates: Values | None = None, size_factors: Tensor | None = None
    ) -> Tensor:
        likelihood = self.decode(z, covariates=covariates, size_factors=size_factors)
        return self.prior().log_prob(z) + likelihood.log_prob(x)

    def _weight(self) -> Any:
        return contextlib.nullcontext() if self.beta is None else poutine.scale(scale=self.beta)

    def _as_float(self, name: str, x: Tensor) -> Tensor:
        dtype = self.latent.log_scale.dtype
        _check_tensor(name, x, dtype)
        return x if x.is_floating_point() else x.to(dtype)

    def _batch(self, x: Tensor, dims: int | None = None) -> torch.Size:
        """The sizes before those of a datum, ``dims`` of them or any number."""
        start = x.dim() - len(self.data_shape)
        if start < 0 or dims not in (None, start) or x.shape[start:] != self.data_shape:
            raise ValueError(
                f"x must have shape (N, {', '.join(map(str, self.data_shape))}), got {tuple(x.shape)}; reshape x, or"
                " build the model with another data_shape."
            )
        return x.shape[:start]

    def _features(self, covariates: Values | None, batch: torch.Size) -> tuple[Tensor, ...]:
        """What encoder and decoder are given beside their first argument."""
        if (self.covariates is None) != (covariates is None):
            names = [] if self.covariates is None else sorted(self.covariates.parts)
            raise ValueError(f"covariates must be those that the model was built with, {names}, got {covariates!r}.")
        if self.covariates is None:
            return ()
        features = self.covariates(covariates).to(self.latent.log_scale.dtype)
        _check_batch("covariates", features.shape[:-1], batch)
        return (features,)

    def _sizes(self, size_factors: Tensor | None, batch: torch.Size) -> Tensor | None:
        """Size factors that broadcast with data."""
        if size_factors is None:
            return None
        if not self.likelihood.takes_size_factors:
            raise ValueError(
                "size_factors scale the means of counts; this likelihood has none. Leave them out, or use likelihood"
                " 'negative_binomial' or 'poisson'."
            )
        _check_batch("size_factors", size_factors.shape, batch)
        if is_validation_enabled() and inspectable(size_factors):
            wrong = ~((size_factors > 0) & (size_factors < math.inf))
            if bool(wrong.any()):
                raise ValueError(f"size_factors must be positive numbers, got {size_factors[wrong][0].item():g}.")
        return self._as_float("size_factors", size_factors).reshape(size_factors.shape + (1,) * len(self.data_shape))

    def _output(self, z: Tensor, *features: Tensor) -> Tensor:
        if isinstance(self.decoder, Decoder):
            return self.decoder(z, *features)
        # Convolutions know one dimension of data, and programs run with several.
        batch = z.shape[:-1]
        flat = [f.expand(*batch, f.shape[-1]).flatten(0, -2) for f in features]
        output = self.decoder(z.reshape(-1, z.shape[-1]), *flat)
        if output.shape[:1] != (math.prod(batch),):
            raise ValueError(
                f"decoder must return one output for each of {math.prod(batch)} latents, got {tuple(output.shape)}."
            )
        return output.unflatten(0, batch) if batch else output.squeeze(0)

    def _plate(
        self,
        x: Tensor | None,
        data_size: int | None,
        subsample_size: int | None,
        covariates: Values | None,
        size_factors: Tensor | None,
    ) -> Any:
        if subsample_size is not None and (x is None or data_size is not None):
            raise ValueError("subsample_size draws from the whole data x: give x, and no data_size.")
        if x is None:
            lengths = self._lengths(covariates, size_factors)
            size = data_size if data_size is not None else max(lengths.values(), default=1)
            _check_lengths(lengths, size, "data to draw")
            return pyro.plate("data", size)
        self._check_data(x, covariates, size_factors)
        if subsample_size is not None:
            subsample_size = checked_integer("subsample_size", subsample_size, least=1, most=len(x))
            return pyro.plate("data", len(x), subsample_size=subsample_size, device=x.device)
        if data_size is None:
            return pyro.plate("data", len(x))
        if data_size < len(x):
            raise ValueError(f"data_size must be at least the {len(x)} data of the minibatch x, got {data_size}.")
        return pyro.plate("data", data_size, subsample=torch.arange(len(x), device=x.device))

    def _check_data(self, x: Tensor, covariates: Values | None, size_factors: Tensor | None) -> None:
        lengths = self._lengths(covariates, size_factors)
        _check_tensor("x", x, self.latent.log_scale.dtype)
        self._batch(x, dims=1)
        if x.layout != torch.strided:
            raise ValueError(
                f"x must be dense, got layout {x.layout}; infer.Minibatches makes dense batches of sparse rows."
            )
        _check_lengths(lengths, len(x), "data of x")

    def _lengths(self, covariates: Values | None, size_factors: Tensor | None) -> dict[str, int]:
        """How many data there are values for; a value without a dimension is for all."""
        extra = {f"covariates[{name!r}]": value for name, value in (covariates or {}).items()}
        extra |= {} if size_factors is None else {"size_factors": size_factors}
        for name, value in extra.items():
            _check_tensor(name, value, self.latent.log_scale.dtype)
        return {name: len(value) for name, value in extra.items() if value.dim()}


class ManifoldVAE(VAE):
    r"""A variational auto-encoder with latents on any of our spaces, as an ordinary Pyro module.

    .. math:: p(z) = \mathcal{N}(0, \sigma_0^2), \quad p(x \mid z) = p(x \mid f_\theta(z)), \quad
              q(z \mid x) = \mathcal{N}(\exp_0(\mu_\phi(x)), \sigma_\phi(x)^2)

    where each normal is wrapped or Riemannian. The paper's auto-encoders are :class:`HyperbolicVAE` and
    :class:`EuclideanVAE`.

    :param manifold: the latent space, for example ``Sphere(1.0)`` or a signature such as ``"h2,s2,e2"``
        (:func:`~pyro_hyperbolic.geometry.from_signature`); a :class:`~pyro_hyperbolic.nn.ManifoldModule` with
        ``learnable=True`` learns its curvatures.
    :param latent_dim: dimension of the latent space.
    :param data_shape: shape of a datum, ``(28, 28)`` for MNIST; an integer for vectors.
    :param hidden_dim: width of the hidden layers.
    :param prior: ``"wrapped"``, ``"riemannian"`` or ``"flow"``.
    :param posterior: ``"wrapped"``, ``"riemannian"`` or ``"flow"``.
    :param flow: options of the flows; see :class:`ManifoldLatent`.
    :param decoder: ``"gyroplane"`` (the paper's), ``"logmap"``, ``"mlp"`` or ``"mobius"``; or your own module, see
        :class:`VAE`.
    :param likelihood: ``"bernoulli"`` (grey levels allowed), ``"normal"`` (unit variance), any other name in
        ``LIKELIHOODS``, a :class:`Likelihood` or a function; see :class:`VAE`.
    :param prior_scale: :math:`\sigma_0`.
    :param posterior_scale: ``"isotropic"`` (the paper's) or ``"diagonal"`` (wrapped posterior or flow).
    :param latent_dtype: dtype of the latent arithmetic; that of the networks by default.
    :param learn_prior_scale: learn :math:`\sigma_0`, starting from ``prior_scale``.
    :param encoder: your own module, see :class:`VAE`; :class:`~pyro_hyperbolic.nn.Encoder` by default.
    :param num_hidden_layers: number of hidden layers in each of the built-in encoder and decoder.
    :param activation: their activation: a name in :data:`~pyro_hyperbolic.nn.networks.ACTIVATIONS`, or a callable that
        makes a module.
    :param dropout: share of the hidden units to drop during training. Call ``eval()`` before you evaluate.
    :param covariates: what is known about every datum besides ``x``.
    :param beta: weight of the divergence; see :class:`VAE`.
    :param name: name in Pyro's parameter store; see :class:`VAE`.

    >>> vae = ManifoldVAE("h2,s2,e2", 6, (28, 28))
    >>> x = torch.rand(8, 28, 28)
    >>> loss = pyro.infer.Trace_ELBO().differentiable_loss(vae.model, vae.guide, x)
    >>> vae.encode(x).batch_shape, vae.generate(3).shape
    (torch.Size([8]), torch.Size([3, 28, 28]))
    """

    latent: ManifoldLatent

    def __init__(
        self,
        manifold: Manifold | ManifoldModule | str,
        latent_dim: int,
        data_shape: tuple[int, ...] | int,
        hidden_dim: int = 600,
        *,
        prior: str = "wrapped",
        posterior: str = "wrapped",
        flow: Mapping[str, Any] | None = None,
        decoder: str | nn.Module = "gyroplane",
        likelihood: str | Likelihood | Callable[..., Any] = "bernoulli",
        prior_scale: float = 1.0,
        posterior_scale: str = "isotropic",
        latent_dtype: torch.dtype | None = None,
        learn_prior_scale: bool = False,
        encoder: nn.Module | None = None,
        num_hidden_layers: int = 1,
        activation: str | Callable[[], nn.Module] = "relu",
        dropout: float = 0.0,
        covariates: Covariates | None = None,
        beta: float | WarmUp | None = None,
        name: str | None = None,
    ) -> None:
        shape = _as_shape(data_shape)
        latent = ManifoldLatent(
            manifold,
            latent_dim,
            prior=prior,
            posterior=posterior,
            flow=flow,
            prior_scale=prior_scale,
            posterior_scale=posterior_scale,
            learn_prior_scale=learn_prior_scale,
            dtype=latent_dtype,
        )
        distribution = build_likelihood(likelihood, shape)
        layers: dict[str, Any] = {"num_hidden_layers": num_hidden_layers, "activation": activation, "dropout": dropout}
        _check_covariates(covariates)
        layers["condition_dim"] = 0 if covariates is None else covariates.size
        if encoder is None:
            encoder = Encoder(shape, hidden_dim, latent_dim, latent.scale_dim, **layers)
        if isinstance(decoder, str):
            decoder = build_decoder(
                decoder, latent.manifold, latent_dim, distribution.output_shape, hidden_dim=hidden_dim, **layers
            )
        super().__init__(
            encoder, decoder, latent, distribution, data_shape=shape, covariates=covariates, beta=beta, name=name
        )

    @property
    def manifold(self) -> Manifold:
        """The latent space with its current curvature."""
        return self.latent.manifold()


class HyperbolicVAE(ManifoldVAE):
    r"""The Poincaré VAE (the paper's Section 3): :class:`ManifoldVAE` on hyperbolic space, in either chart.

    :param manifold: ``PoincareBall(c)``, ``Lorentz(c)``, their signature, such as ``"p2"``, or a
        :class:`~pyro_hyperbolic.nn.ManifoldModule` of one of them.
    :param latent_dim: dimension of the latent space.
    :param data_shape: shape of a datum, ``(28, 28)`` for MNIST; an integer for vectors.
    :param hidden_dim: width of the hidden layers.
    :param options: further options of :class:`ManifoldVAE`.

    >>> from pyro_hyperbolic import PoincareBall
    >>> vae = HyperbolicVAE(PoincareBall(1.4), 2, (28, 28))
    >>> x = torch.rand(8, 28, 28)
    >>> loss = pyro.infer.Trace_ELBO().differentiable_loss(vae.model, vae.guide, x)
    >>> vae.encode(x).mean.shape, vae.generate(3).shape
    (torch.Size([8, 2]), torch.Size([3, 28, 28]))
    """

    def __init__(
        self,
        manifold: Manifold | ManifoldModule | str,
        latent_dim: int,
        data_shape: tuple[int, ...] | int,
        hidden_dim: int = 600,
        **options: Any,
    ) -> None:
        super().__init__(hyperbolic(manifold, "VAE"), latent_dim, data_shape, hidden_dim, **options)


class EuclideanVAE(ManifoldVAE):
    r"""The N-VAE: the same programs with a Gaussian latent, the limit of :class:`HyperbolicVAE` as :math:`c \to 0`.

    This is :class:`ManifoldVAE` on :class:`~pyro_hyperbolic.Euclidean` with the decoder ``"mlp"``.

    :param latent_dim: dimension of the latent space.
    :param data_shape: shape of a datum, ``(28, 28)`` for MNIST; an integer for vectors.
    :param hidden_dim: width of the hidden layers.
    :param options: further options of :class:`ManifoldVAE`.

    >>> EuclideanVAE(2, (28, 28)).generate(3).shape
    torch.Size([3, 28, 28])
    """

    def __init__(
        self, latent_dim: int, data_shape: tuple[int, ...] | int, hidden_dim: int = 600, **options: Any
    ) -> None:
        if "manifold" in options:
            raise ValueError(
                f"EuclideanVAE takes no manifold, got {options['manifold']!r}; use ManifoldVAE(manifold, latent_dim,"
                " data_shape)."
            )
        super().__init__(Euclidean(), latent_dim, data_shape, hidden_dim, **{"decoder": "mlp"} | options)


def _check_covariates(covariates: Any) -> None:
    if covariates is not None and not isinstance(covariates, Covariates):
        raise ValueError(
            f"covariates must be a Covariates, got {type(covariates).__name__}; write Covariates(batch=OneHot(2))."
        )


def _check_tensor(name: str, value: Any, dtype: torch.dtype) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name} must be a tensor, got {type(value).__name__}; pass torch.as_tensor(..., dtype={dtype})."
        )


def _positive_weight(beta: float | WarmUp) -> float:
    weight = beta(0) if isinstance(beta, WarmUp) else beta
    if not (is_number(weight) and 0 < weight < math.inf):
        raise ValueError(f"beta must be a positive number or a WarmUp, got {beta!r}.")
    return float(weight)


def _rows(index: Tensor | None, **values: Any) -> dict[str, Any]:
    """Tensors, and dictionaries of them, at an index; ``None`` of either is all."""
    return values if index is None else data_at(index, values)


@contextlib.contextmanager
def _evaluated(module: nn.Module) -> Iterator[None]:
    """As after ``eval()`` and ``requires_grad_(False)``, for the time being."""
    training = [part for part in module.modules() if part.training]
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    module.eval().requires_grad_(False)
    try:
        yield
    finally:
        for part in training:
            part.training = True
        for parameter in learned:
            parameter.requires_grad_()


def _check_lengths(lengths: dict[str, int], size: int, what: str) -> None:
    for name, length in lengths.items():
        if length != size:
            raise ValueError(f"{name} must have one value for each of the {size} {what}, got {length}.")


def _check_batch(name: str, given: torch.Size, batch: torch.Size) -> None:
    if len(given) > len(batch) or any(a not in (1, b) for a, b in zip(reversed(given), reversed(batch), strict=False)):
        raise ValueError(
            f"{name} must have one value for each datum, or one for all: {tuple(batch)}, got {tuple(given)}."
        )


def _as_shape(data_shape: tuple[int, ...] | int) -> tuple[int, ...]:
    shape = tuple(data_shape) if isinstance(data_shape, (tuple, list)) else (data_shape,)
    if not shape:
        raise ValueError(f"data_shape must be a positive integer or a tuple of them, got {data_shape!r}.")
    return tuple(checked_integer("each size of data_shape", size, least=1) for size in shape)
