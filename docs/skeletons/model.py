"""An auto-encoder of images with convolutions: a skeleton to copy for a model. docs/extending.rst shows it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.models import VAE, ManifoldLatent
from pyro_hyperbolic.nn import ManifoldModule, build_decoder


class ConvEncoder(nn.Module):
    """Images ``(N, height, width)`` to a Euclidean location and a positive scale."""

    def __init__(self, data_shape: tuple[int, int], channels: int, latent_dim: int, scale_dim: int) -> None:
        super().__init__()
        height, width = ((size + 1) // 2 for size in data_shape)
        self.trunk = nn.Sequential(nn.Conv2d(1, channels, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        self.loc = nn.Linear(channels * height * width, latent_dim)
        self.scale = nn.Linear(channels * height * width, scale_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x.unsqueeze(-3))
        return self.loc(hidden), F.softplus(self.scale(hidden))


class ConvVAE(VAE):
    """The Poincaré VAE with a convolutional encoder; ``model`` and ``guide`` come from :class:`VAE`.

    :param manifold: the latent space, or a :class:`ManifoldModule`.
    :param latent_dim: its dimension.
    :param data_shape: height and width of an image.
    :param channels: of the convolution.

    >>> import torch
    >>> from pyro_hyperbolic import PoincareBall
    >>> vae = ConvVAE(PoincareBall(1.0), 2, (28, 28))
    >>> vae.encode(torch.rand(8, 28, 28)).batch_shape
    torch.Size([8])
    """

    latent: ManifoldLatent

    def __init__(
        self,
        manifold: Manifold | ManifoldModule,
        latent_dim: int,
        data_shape: tuple[int, int],
        *,
        channels: int = 8,
        hidden_dim: int = 200,
    ) -> None:
        latent = ManifoldLatent(manifold, latent_dim)
        super().__init__(
            encoder=ConvEncoder(data_shape, channels, latent_dim, latent.scale_dim),
            decoder=build_decoder("gyroplane", latent.manifold, latent_dim, data_shape, hidden_dim=hidden_dim),
            latent=latent,
            likelihood="bernoulli",
        )

    @property
    def manifold(self) -> Manifold:
        """The latent space with its present curvature."""
        return self.latent.manifold()
