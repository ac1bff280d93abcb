"""Auto-encoders of counts, such as gene counts of single cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pyro.infer.util import is_validation_enabled
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.models.vae import ManifoldVAE
from pyro_hyperbolic.nn import Covariates, ManifoldModule, OneHot
from pyro_hyperbolic.ops.checks import inspectable, is_number


class CountVAE(ManifoldVAE):
    r"""An auto-encoder of count vectors, with latents on any of our spaces.

    .. math:: x_{ng} \sim \operatorname{NB}(m_{ng}, r_g), \qquad
              m_{ng} = s_n \exp(f_\theta(z_n, b_n)_g), \qquad \operatorname{Var} = m + m^2 / r

    with a size factor :math:`s_n` for every datum, a learned inverse dispersion :math:`r_g` for every feature (gene)
    and a batch :math:`b_n`. Encoder and decoder know the batch, so the latent need not encode it. The encoder reads
    :math:`\log(1 + x / s)`. If you give no size factors, they are the total counts divided by ``target_sum``. Then
    :meth:`decode` without size factors gives means for that total, which are comparable between data.

    :param manifold: the latent space, as for :class:`ManifoldVAE`.
    :param latent_dim: its dimension.
    :param num_features: number of counts per datum.
    :param hidden_dim: width of the hidden layers.
    :param batches: number or names of the batches, the covariate ``"batch"``; ``None`` for a single batch.
    :param target_sum: total counts of a datum with size factor 1.
    :param likelihood: ``"negative_binomial"``, ``"poisson"`` or ``"zero_inflated_negative_binomial"``.
    :param options: further options of :class:`ManifoldVAE`.

    >>> import torch
    >>> from pyro_hyperbolic import PoincareBall
    >>> vae = CountVAE(PoincareBall(1.0), 2, num_features=50, batches=["first", "second"])
    >>> x, batch = torch.poisson(torch.ones(8, 50)), torch.arange(8) % 2
    >>> posterior = vae.encode(x, covariates={"batch": batch})
    >>> in_the_first = vae.decode(posterior.mean, covariates={"batch": torch.tensor(0)})
    >>> in_the_first.mean.shape
    torch.Size([8, 50])
    """

    def __init__(
        self,
        manifold: Manifold | ManifoldModule | str,
        latent_dim: int,
        num_features: int,
        hidden_dim: int = 128,
        *,
        batches: int | Sequence[str] | None = None,
        target_sum: float = 1e4,
        likelihood: str = "negative_binomial",
        **options: Any,
    ) -> None:
        if not (is_number(target_sum) and 0 < target_sum < math.inf):
            raise ValueError(f"target_sum must be a positive number, got {target_sum!r}.")
        if batches is not None:
            if options.get("covariates") is not None:
                raise ValueError("batches is the covariate 'batch'; give it among covariates, and leave batches out.")
            options["covariates"] = Covariates(batch=OneHot(batches))
        super().__init__(manifold, latent_dim, num_features, hidden_dim, likelihood=likelihood, **options)
        self.target_sum = float(target_sum)

    def size_factors(self, x: Tensor) -> Tensor:
        total = x.sum(-1)
        if is_validation_enabled() and inspectable(total) and not bool((total > 0).all()):
            self.likelihood.check(x)
            rows = (total <= 0).nonzero().flatten().tolist()
            raise ValueError(
                f"x has no counts in {len(rows)} rows, the first of which is {rows[0]}; leave these out, or give"
                " size_factors."
            )
        return total / self.target_sum
