"""Draws from exact posteriors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyro_hyperbolic import Lorentz, PoincareBall, Sphere
from pyro_hyperbolic.analysis import posterior_coverage
from pyro_hyperbolic.geometry import Manifold, from_signature
from pyro_hyperbolic.models import CountVAE, EuclideanVAE, ManifoldVAE, PosteriorDraws, posterior
from tests.models.cases import COMPOSED, VAES


class LinearEncoder(nn.Module):
    """A posterior of one scale, whose location is linear in the data."""

    def __init__(self, weight: Tensor, bias: Tensor, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(*reversed(weight.shape))
        self.linear.weight.data, self.linear.bias.data = weight, bias
        self.scale = scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loc = self.linear(x)
        return loc, loc.new_full((*loc.shape[:-1], 1), self.scale)


class Linear:
    """z ~ N(0, 1), x ~ N(W z + b, 1), of which the posterior is known: N((x - b) M', C) with M = C W'."""

    def __init__(self, dim: int, num_features: int) -> None:
        self.weight, self.bias = torch.randn(num_features, dim), torch.randn(num_features)
        self.covariance = torch.linalg.inv(torch.eye(dim) + self.weight.mT @ self.weight)
        self.to_mean = self.covariance @ self.weight.mT
        self.width = self.covariance.diagonal().mean().sqrt().item()

    def data(self, size: int) -> Tensor:
        z = torch.randn(size, self.weight.shape[1])
        return z @ self.weight.mT + self.bias + torch.randn(size, len(self.bias))

    def vae(self, shift: float = 0.0, width: float = 1.0) -> EuclideanVAE:
        """With an encoder that is off by so many standard deviations, and so much too wide."""
        dim = self.weight.shape[1]
        decoder = nn.Linear(dim, len(self.bias))
        decoder.weight.data, decoder.bias.data = self.weight.clone(), self.bias.clone()
        away = shift * self.width * nn.functional.normalize(torch.randn(dim), dim=0)
        encoder = LinearEncoder(self.to_mean, away - self.to_mean @ self.bias, width * self.width)
        return EuclideanVAE(dim, len(self.bias), likelihood="normal", encoder=encoder, decoder=decoder)

    def whitened(self, x: Tensor, z: Tensor) -> Tensor:
        """Draws ``(S, N, d)`` as standard normals, if they are right."""
        apart = z - (x - self.bias) @ self.to_mean.mT
        return torch.linalg.solve_triangular(torch.linalg.cholesky(self.covariance), apart.unsqueeze(-1), upper=False)


def test_exact_moments_from_good_and_bad_encoders() -> None:
    torch.manual_seed(0)
    dim = 4
    linear = Linear(dim, 3 * dim)
    x = linear.data(40)
    for shift, width, share in ((0.0, 1.2, (0.0, 0.4)), (0.0, 0.1, (0.9, 1.0)), (6.0, 0.3, (1.0, 1.0))):
        found = linear.vae(shift, width).posterior(x, num_samples=100, seed=0)
        moved = found.moved
        least, most = share
        assert least <= moved.double().mean() <= most
        assert (moved | (found.pareto_k <= 0.7)).all()
        assert (found.acceptance[~moved] == 1).all()
        assert ((found.acceptance[moved] > 0.6) & (found.acceptance[moved] < 1)).all()
        noise = linear.whitened(x, found.samples).squeeze(-1)
        # Of 40 data with 100 draws of each: sums of squares of 40 d normals, and of 4000 d.
        assert 100 * noise.mean(0).square().mean() == pytest.approx(1.0, abs=4 * (2 / (40 * dim)) ** 0.5)
        assert noise.var(0).mean() == pytest.approx(1.0, abs=4 * (2 / (4000 * dim)) ** 0.5)
        # And no direction is missed in any of the data.
        assert noise.var(0).amin() > 0.4


SPACES: list[tuple[Manifold, int, dict[str, Any]]] = [
    (PoincareBall(1.0), 2, {"likelihood": "bernoulli"}),
    (Lorentz(0.5), 2, {"posterior": "riemannian", "prior": "riemannian", "likelihood": "normal"}),
    (Sphere(1.0), 2, {"likelihood": "normal", "prior_scale": 1.5}),
    (from_signature("h2,s1"), 3, {"likelihood": "normal", "decoder": "mlp", "latent_dtype": torch.float64}),
]


@pytest.mark.parametrize(
    ("manifold", "dim", "options"),
    [pytest.param(*row, marks=pytest.mark.slow) for row in SPACES],
    ids=["ball", "hyperboloid", "sphere", "product"],
)
def test_regions_hold_the_truth(manifold: Manifold, dim: int, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    vae = ManifoldVAE(manifold, dim, 6, 8, **options)
    vae.decoder.output.weight.data *= 3.0  # so that data say much
    with torch.no_grad():
        truth = vae.prior().sample((200,))
        x = vae.decode(truth).sample()
    found = vae.posterior(x, num_samples=39, num_proposals=400)
    assert manifold.contains(found.samples).all()
    assert 0 < found.moved.double().mean() < 1
    for level in (0.5, 0.9):
        error = 4 * (level * (1 - level) / 200) ** 0.5
        assert posterior_coverage(found.samples, truth, level=level, manifold=manifold) == pytest.approx(
            level, abs=error
        )
    assert posterior_coverage(vae.encode(x), truth) < 0.7


@pytest.mark.slow
def test_every_model(few_trajectories: None) -> None:
    for case in (*VAES, *COMPOSED):
        vae = case.build()
        found = vae.posterior(*case.args, **case.kwargs, num_samples=2, num_proposals=25)
        assert found.samples.shape == (2, case.num_latents, case.num_coordinates)
        vae.latent.check(found.samples)
        assert found.samples.dtype == vae.encode(*case.args, **case.kwargs).sample().dtype
        assert found.moved.all()  # 25 proposals are too few


def test_chart_has_the_jacobian_that_it_says() -> None:
    torch.manual_seed(0)
    for manifold, dim, _ in SPACES:
        vae = ManifoldVAE(manifold, dim, 6, 8)
        v = torch.randn(dim, dtype=torch.float64)
        chart = vae.latent.chart(vae.prior().sample().double())
        z = chart(v)
        assert torch.allclose(chart.inv(z), v)

        def around(v: Tensor, manifold: Manifold = manifold, chart: Any = chart, z: Tensor = z) -> Tensor:
            return manifold.to_normal_coords(z, chart(v))

        jacobian = torch.autograd.functional.jacobian(around, v)
        assert torch.allclose(chart.log_abs_det_jacobian(v, z), jacobian.det().abs().log(), atol=1e-5)


@pytest.fixture
def few_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_ROUNDS", "_PER_ROUND", "_LAST"):
        monkeypatch.setattr(posterior, name, 1)


@pytest.fixture
def counts(few_trajectories: None) -> tuple[CountVAE, dict[str, Any]]:
    torch.manual_seed(0)
    vae = CountVAE(PoincareBall(1.0), 2, num_features=8, hidden_dim=4, batches=2, target_sum=20, dropout=0.5)
    return vae, {"x": torch.poisson(torch.full((5, 8), 3.0)) + 1, "covariates": {"batch": torch.arange(5) % 2}}


def test_seeds_chunks_and_what_is_left_behind(counts: tuple[CountVAE, dict[str, Any]]) -> None:
    vae, data = counts
    state, parts = torch.get_rng_state(), [(part, part.training) for part in vae.modules()]
    options = {"num_samples": 3, "num_proposals": 50, "chunk": 100, "seed": 1}
    first, again = (vae.posterior(**data, **options) for _ in range(2))
    assert first.samples.shape == (3, 5, 2)
    assert torch.equal(first.samples, again.samples)
    assert not torch.equal(first.samples, vae.posterior(**data, **options | {"seed": 2}).samples)
    assert torch.equal(torch.get_rng_state(), state)
    vae.posterior(**data, num_samples=3, num_proposals=50)
    assert not torch.equal(torch.get_rng_state(), state)
    assert all(part.training == mode for part, mode in parts)
    assert all(p.requires_grad and p.grad is None for p in vae.parameters())
    assert not first.samples.requires_grad


def test_size_factors_and_weight_of_the_divergence(counts: tuple[CountVAE, dict[str, Any]]) -> None:
    """Those of the class are the default, and the weight changes nothing."""
    vae, data = counts
    options = {"num_samples": 2, "num_proposals": 50, "seed": 0}
    plain = vae.posterior(**data, **options)
    sizes = data["x"].sum(-1) / vae.target_sum
    assert torch.equal(vae.posterior(**data, size_factors=sizes, **options).samples, plain.samples)
    assert not torch.equal(vae.posterior(**data, size_factors=3 * sizes, **options).samples, plain.samples)
    vae.beta = torch.tensor(0.1)
    assert torch.equal(vae.posterior(**data, **options).samples, plain.samples)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 0}, "num_samples must be a positive integer"),
        ({"num_proposals": 20}, "num_proposals must be an integer of at least 25, got 20"),
        ({"chunk": 0}, "chunk must be a positive integer"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"x": torch.ones(8)}, "x must have shape"),
        ({"x": torch.full((5, 8), 0.5)}, "x must hold counts"),
        ({"covariates": {"batch": torch.tensor([0, 1])}}, "one value for each of the 5 data"),
    ],
)
def test_wrong_input(counts: tuple[CountVAE, dict[str, Any]], changes: dict[str, Any], message: str) -> None:
    vae, data = counts
    with pytest.raises(ValueError, match=message):
        vae.posterior(**data | {"num_proposals": 50} | changes)


def test_data_without_density(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = Linear(2, 3)
    vae, x = linear.vae(), linear.data(4)
    joint = vae._log_joint
    monkeypatch.setattr(vae, "_log_joint", lambda z, x: torch.where(x[:, 0] < 0, -torch.inf, joint(z, x)))
    x[:, 0] = torch.tensor([1.0, 1.0, -1.0, 1.0])
    with pytest.raises(ValueError, match="no density at any draw of the encoder for 1 data, the first of which is 2"):
        vae.posterior(x)


def compiled_and_not(vae: EuclideanVAE, x: Tensor) -> list[PosteriorDraws]:
    """In batches of 20 data, of which the last are filled up for compiled steps."""
    return [vae.posterior(x, 30, seed=0, chunk=600, compile=compile) for compile in (True, False)]


@pytest.mark.slow
def test_compiled_steps_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    linear = Linear(2, 5)
    vae, x = linear.vae(6.0, 0.3), linear.data(50)
    for found in compiled_and_not(vae, x):
        assert found.moved.all()
        assert linear.whitened(x, found.samples).var() == pytest.approx(1.0, abs=0.15)
    # Adaptation makes much of rounding errors, so that only short runs agree number by number.
    for name in ("_ROUNDS", "_PER_ROUND", "_LAST"):
        monkeypatch.setattr(posterior, name, 1)
    first, second = compiled_and_not(vae, x)
    assert torch.allclose(first.samples[:, :40], second.samples[:, :40], atol=1e-4)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    torch.manual_seed(0)
    linear = Linear(2, 5)
    x = linear.data(50)
    for found in compiled_and_not(linear.vae(6.0, 0.3).cuda(), x.cuda()):
        assert found.samples.is_cuda
        assert found.moved.all()
        noise = linear.whitened(x, found.samples.cpu())
        assert noise.mean() == pytest.approx(0.0, abs=0.1)
        assert noise.var() == pytest.approx(1.0, abs=0.15)
