"""The shorter examples with tiny settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.models import ManifoldVAE
from pyro_hyperbolic.nn import ManifoldModule

Load = Callable[[str], ModuleType]

# example, tiny settings, what it writes beside its record
RUNS = [
    ("branching_diffusion", "--depth 3 --hidden-dim 16 --num-epochs 4 --iwae-samples 3", ["embedding.png"]),
    ("link_prediction", "--hidden-dim 8 --num-epochs 60", ["embedding.png", "latent.html"]),
    ("link_prediction", "--space h3 --hidden-dim 8 --num-epochs 60 --graph balanced_tree:2:4", ["latent.html"]),
    (
        "mixture_prior_vae",
        "--hidden-dim 16 --num-epochs 2 --batch-size 50 --components 3 --iwae-samples 2",
        ["latent.png", "components.png"],
    ),
    (
        "mixture_prior_vae",
        "--hidden-dim 16 --num-epochs 2 --batch-size 50 --latent-dim 3 --iwae-samples 0",
        ["components.png"],
    ),
    ("single_cell", "--hidden-dim 8 --num-epochs 2 --iwae-samples 2", ["disc.png", "embedding.npz", "latent.html"]),
    pytest.param(
        "storms", "--components 2 --warmup 20 --num-samples 8 --chains 2", ["storms.png"], marks=pytest.mark.slow
    ),
]
RECORDS = {"storms": "storms.json"}
LOSSES = {"link_prediction": "losses", "single_cell": "loss"}


@pytest.mark.parametrize(("name", "options", "files"), RUNS)
def test_runs(
    name: str,
    options: str,
    files: list[str],
    load_example: Load,
    digits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = load_example(name)
    monkeypatch.setattr(example, "TREE_DEPTH", 2, raising=False)  # of the one that has a chain
    data = ["--data-dir", str(digits)] if name == "mixture_prior_vae" else []
    result = example.main([*options.split(), *data, "--output-dir", str(tmp_path)])
    record = RECORDS.get(name, "metrics.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*files, record])
    assert json.loads((tmp_path / record).read_text()) == result
    if name != "storms":
        losses = result[LOSSES.get(name, "train_loss")]
        some = -(-len(losses) // 3)  # of which the mean is less noisy
        assert sum(losses[-some:]) < sum(losses[:some])


@pytest.mark.parametrize("name", ["link_prediction", "single_cell"])
def test_one_hyperbolic_space_is_wanted(name: str, load_example: Load, refusal: Callable[..., str]) -> None:
    for space in ("e2", "h2,s2"):
        said = refusal(load_example(name).main, ["--space", space])
        assert f"--space must be a ball or a hyperboloid such as p2 or h5, got {space}" in said


def test_turning_latitude_of_a_known_turn(load_example: Load) -> None:
    example = load_example("storms")
    heading = ((example.LATITUDES - 30.5) / 20).unsqueeze(-1)
    turn = example.turning_latitude(torch.cat([heading, heading.abs() + 0.1], -1))
    assert turn[0] == pytest.approx(30.5)
    assert turn[1].isnan()


def test_the_mixture_is_summed_out(load_example: Load) -> None:
    """The loss by enumeration is that of the mixture itself as the prior."""
    vae = load_example("mixture_prior_vae").MixtureVAE(PoincareBall(1.4), 2, 3, 8)
    with torch.no_grad():
        vae.logits.copy_(torch.tensor([0.5, -0.5, 1.0]))

    def marginal(x: torch.Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.MixtureSameFamily(dist.Categorical(logits=vae.logits), vae.component()))
            pyro.sample("x", vae.decode(z), obs=x)

    x, losses = torch.rand(7, 28, 28), []
    for program, loss in ((vae.model, TraceEnum_ELBO(max_plate_nesting=1)), (marginal, Trace_ELBO())):
        pyro.set_rng_seed(0)
        losses.append(loss.loss(program, vae.guide, x))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_convolutions_are_the_model_of_the_library(load_example: Load) -> None:
    conv, losses = load_example("conv_vae"), []
    own = conv.ConvVAE(ManifoldModule(PoincareBall(1.4)), 2, 2)
    library = ManifoldVAE(own.space, 2, conv.SHAPE, encoder=own.encoder, decoder=own.decoder)
    loss = Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1)
    for vae in (own, library):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        losses.append(loss.loss(vae.model, vae.guide, torch.linspace(0, 1, 5 * 784).reshape(5, *conv.SHAPE)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("options", ["", pytest.param("--warm-up 0 --space p3", marks=pytest.mark.slow)])
def test_conv_vae_runs(options: str, load_example: Load, digits: Path, tmp_path: Path) -> None:
    conv = load_example("conv_vae")
    tiny = "--channels 2 --num-epochs 3 --batch-size 50 --warm-up 5 --iwae-samples 3 --learning-rate 0.01 --device cpu"
    arguments = [*tiny.split(), "--data-dir", str(digits), "--output-dir", str(tmp_path), *options.split()]
    result = conv.main(arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latent.png", "metrics.json", "reconstructions.png"]
    record = json.loads((tmp_path / "metrics.json").read_text())
    assert record["negative_iwae"] == result["negative_iwae"]
    losses = result["train_loss"]
    assert len(losses) == 3
    # 784 pixels that are as likely black as white have 543 nats.
    assert losses[-1] < losses[0] < 600
    assert result["negative_iwae"] < 400
