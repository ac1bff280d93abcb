"""``experiments/mixture_prior.py`` with tiny settings: its prior, its scores, its files, and that it resumes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import log_marginal_likelihood
from pyro_hyperbolic.models import ManifoldVAE
from tests.examples.comparing import equal
from tests.helpers import same

# A study; its short example is tested in every run.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("coarse_pictures")]
TINY = (
    "--hidden-dim 16 --batch-size 50 --learning-rate 1e-2 --num-epochs 2 --components 4 --iwae-samples 4"
    " --iwae-images 50 --fit-steps 3 --threads 1"
)
FILES = ["components.png", "latent.png", "metrics.json", "mixture.pt", "single.pt"]


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("experiments.mixture_prior")


@pytest.fixture
def run(example: ModuleType, digits: Path) -> Callable[..., dict[str, Any]]:
    def run(folder: Path, options: str = "") -> dict[str, Any]:
        given = [*TINY.split(), "--data-dir", str(digits), "--output-dir", str(folder), *options.split()]
        return example.main(given)

    return run


@pytest.fixture
def vae(example: ModuleType) -> Any:
    """A mixture of unequal weights and scales, with a posterior as wide as the prior."""
    vae = example.MixtureVAE(PoincareBall(1.4), 2, 3, 8)
    with torch.no_grad():
        vae.latent.logits.copy_(torch.tensor([0.5, -0.5, 1.0]))
        vae.latent.log_scales.copy_(torch.tensor([[0.3], [0.8], [0.5]]).log())
        vae.encoder.scale.bias.fill_(1.0)
    return vae


def marginal(vae: Any) -> Callable[..., Any]:
    """The model of the same auto-encoder whose latents are drawn from the mixture itself."""

    def model(x: torch.Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", vae.prior())
            pyro.sample("x", vae.decode(z), obs=x)

    return model


@pytest.mark.parametrize("options", ["", "--space p3 --iwae-samples 0 --curvature 0.3"])
def test_runs(options: str, run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path, options)
    files = [name for name in FILES if name != "latent.png" or not options]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert all((tmp_path / name).stat().st_size > 1000 for name in files)
    assert json.loads((tmp_path / "metrics.json").read_text()) == result
    assert (result["train_size"], result["test_size"]) == (300, 100)
    assert list(result["models"]) == ["single", "mixture"]
    printed = capsys.readouterr().out
    for name, entry in result["models"].items():
        history = entry["history"]
        assert [len(values) for values in history.values()] == [2, 2, 2]
        assert 100 < history["test_loss"][-1] < history["test_loss"][0] < 300
        assert sum(entry["weights"]) == pytest.approx(1.0, abs=1e-5)
        assert 0.1 < entry["purity"] <= 1
        assert 0 <= entry["nmi"] <= 1
        assert 1 <= entry["components_in_use"] <= 4
        assert ("negative_iwae" in entry) == (not options)
        if not options:
            assert entry["negative_iwae"] < history["test_loss"][-1] + 5  # half of the images, and its own noise
        assert f"{name:10}{history['test_loss'][-1]:10.2f}" in printed


def test_enumeration_is_the_mixture(vae: Any) -> None:
    x = torch.rand(7, 28, 28)
    losses, gradients = [], []
    for program, loss in ((vae.model, TraceEnum_ELBO(max_plate_nesting=1)), (marginal(vae), Trace_ELBO())):
        pyro.set_rng_seed(0)
        vae.zero_grad()
        value = loss.differentiable_loss(program, vae.guide, x)
        value.backward()
        losses.append(value.detach())
        gradients.append([p.grad.clone() for p in vae.latent.parameters() if p.requires_grad])
    same(*losses, 1e-5)
    assert len(gradients[0]) == 3
    for enumerated, direct in zip(*gradients, strict=True):
        assert (enumerated.abs() > 0).all()
        same(enumerated, direct, 1e-3)


def test_marginal_likelihood_sums_the_components_out(vae: Any) -> None:
    x = torch.rand(5, 28, 28)
    estimates = []
    for program in (vae.model, marginal(vae)):
        pyro.set_rng_seed(0)
        estimates.append(log_marginal_likelihood(program, vae.guide, x, num_samples=30))
    same(*estimates, 1e-5)


def test_prior_is_the_distribution_of_what_the_model_draws(vae: Any) -> None:
    z = vae.model(None, data_size=4000)
    draws = vae.prior().sample((4000,))
    for other in (z, draws):
        share = vae.latent.responsibilities(other).mean(0)
        # The mean of probabilities given draws of their own distribution is that of the components.
        assert (share - vae.latent.assignment().probs).abs().max() < 0.03
    shifted = vae.latent.responsibilities(PoincareBall(1.4).expmap0(0.3 * torch.ones(2) + 0 * z)).mean(0)
    assert (shifted - vae.latent.assignment().probs).abs().max() > 0.1


def test_responsibilities(vae: Any) -> None:
    with torch.no_grad():
        vae.latent.centres.copy_(torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0]]))
        centres = vae.latent.component().loc
        shares = vae.latent.responsibilities(centres)
    assert shares.shape == (3, 3)
    same(shares.sum(-1), torch.ones(3), 1e-6)
    assert shares.argmax(-1).tolist() == [0, 1, 2]
    first = vae.latent.component(torch.tensor([2, 0]))
    assert torch.equal(first.loc, vae.latent.component().loc[[2, 0]])


TABLES = [
    # Components of eight images, their labels, purity and normalised mutual information.
    ([0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6, 7, 7], 1.0, 1.0),
    ([3, 3, 2, 2, 1, 1, 0, 0], [4, 4, 5, 5, 6, 6, 7, 7], 1.0, 1.0),
    ([0, 1, 0, 1, 0, 1, 0, 1], [4, 4, 5, 5, 6, 6, 7, 7], 0.25, 0.0),
    ([0, 0, 0, 0, 0, 0, 0, 0], [4, 4, 4, 5, 5, 6, 6, 7], 0.375, 0.0),
    # Two labels in each of two components: half of the bits, log 2 of (log 2 + log 4) / 2.
    ([0, 0, 0, 0, 1, 1, 1, 1], [4, 4, 5, 5, 6, 6, 7, 7], 0.5, 2 / 3),
]


@pytest.mark.parametrize(("components", "labels", "purity", "nmi"), TABLES)
def test_clustering(components: list[int], labels: list[int], purity: float, nmi: float, example: ModuleType) -> None:
    scores = example.clustering(torch.tensor(components), torch.tensor(labels), 5)
    assert scores["purity"] == pytest.approx(purity)
    assert scores["nmi"] == pytest.approx(nmi, abs=1e-12)
    assert scores["components_in_use"] == len(set(components))


def test_fitted_mixture_finds_clusters(example: ModuleType) -> None:
    ball = PoincareBall(1.4)
    vae = ManifoldVAE(ball, 2, (28, 28), 8)
    args = example.parser().parse_args(["--components", "2", "--fit-steps", "200"])
    centres = ball.expmap0(torch.tensor([[1.0, 0.0], [-0.6, 0.6]]))
    labels = torch.arange(2).repeat(200)
    z = example.WrappedNormal(centres[labels], 0.3, ball).sample()
    latent = example.fit_mixture(vae, z, args)
    found = latent.responsibilities(z).argmax(-1)
    assert example.clustering(found, labels, 2)["nmi"] > 0.95
    assert (latent.log_scales.exp() - 0.3).abs().max() < 0.1
    # The entropy of the distribution that they came from, which no fit can beat by much.
    entropy = math.log(2) + 2 * math.log(0.3) + 1 + math.log(2 * math.pi)
    assert -latent.prior().log_prob(z).mean() < entropy + 0.2


class Stopped(Exception):
    """Stands for the end of a process in the middle of its work."""


def test_resumes_bit_for_bit(run: Any, example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole")
    original, count = example.save_run, 0

    def stopping(*args: Any, **facts: Any) -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise Stopped
        original(*args, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(example, "save_run", stopping)
        with pytest.raises(Stopped):
            run(tmp_path / "parts")
    # One model is finished, the other half done.
    assert (tmp_path / "parts" / "mixture.pt").exists()
    parts = run(tmp_path / "parts", "--resume")
    for name in example.MODELS:
        one, other = (torch.load(tmp_path / folder / f"{name}.pt", weights_only=True) for folder in ("whole", "parts"))
        for payload in (one, other):
            del payload["state"]["options"], payload["state"]["state"]["history"]["seconds"]
        assert equal(one, other)
        assert parts["models"][name]["negative_iwae"] == whole["models"][name]["negative_iwae"]
