"""Draw ``docs/figures/curvature_calibration.png``: simulation-based calibration of a drawn curvature.

    python docs/figures/curvature_calibration.py

A curvature, four points and their noisy distances are drawn from the model, 200 times; NUTS samples the
posterior of all of them, each with a curvature of its own; and the true values are ranked among the samples. If the
posterior is right the ranks are uniform (Talts et al., *Validating Bayesian inference algorithms with simulation-based
calibration*, 2018). It takes about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, Predictive
from pyro.infer.autoguide import init_to_sample
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import with_drawn_curvature

FOLDER = Path(__file__).parent
POINTS = 4
PAIRS = torch.combinations(torch.arange(POINTS))
NOISE = 0.3
BINS = 16


def model(replicates: int, observed: Tensor | None = None) -> None:
    """Every replicate has a curvature, points around the origin, and noisy distances of all pairs."""
    with pyro.plate("replicates", replicates, dim=-2):
        ball = PoincareBall(pyro.sample("c", dist.LogNormal(0.0, 0.7)))
        with pyro.plate("points", POINTS, dim=-1):
            z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, ball))
        d = ball.dist(z[..., PAIRS[:, 0], :], z[..., PAIRS[:, 1], :])
        with pyro.plate("pairs", len(PAIRS), dim=-1):
            pyro.sample("d", dist.Normal(d, NOISE), obs=observed)


@dataclass
class Ranks:
    """Ranks of the truth among ``draws`` samples, ``(replicates,)`` each, and the chain's health."""

    curvature: Tensor
    misfit: Tensor
    draws: int
    n_eff: Tensor
    r_hat: Tensor
    divergences: int


def calibrate(replicates: int = 200, samples: int = 640, warmup: int = 160, thin: int = 10, seed: int = 0) -> Ranks:
    """Draw, sample and rank."""
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(seed)
    program = with_drawn_curvature(model)
    truth = {name: value.squeeze(0) for name, value in Predictive(program, num_samples=1)(replicates).items()}
    kernel = NUTS(program, max_tree_depth=5, init_strategy=init_to_sample)
    mcmc = MCMC(kernel, num_samples=samples, warmup_steps=warmup, disable_progbar=True)
    mcmc.run(replicates, truth["d"])
    chain = mcmc.get_samples()
    log_c = chain["c"].log().squeeze(-1)

    def misfit(c: Tensor, coords: Tensor) -> Tensor:
        ball = PoincareBall(c)
        z = ball.from_normal_coords(None, coords)
        d = ball.dist(z[..., PAIRS[:, 0], :], z[..., PAIRS[:, 1], :])
        return (d - truth["d"]).square().sum(-1)

    drawn = {name: value[thin - 1 :: thin] for name, value in chain.items()}
    return Ranks(
        (drawn["c"] < truth["c"]).sum(0).squeeze(-1),
        (misfit(drawn["c"], drawn["z_coords"]) < misfit(truth["c"], truth["z_coords"])).sum(0),
        len(drawn["c"]),
        effective_sample_size(log_c.unsqueeze(0)),
        split_gelman_rubin(log_c.unsqueeze(0)),
        sum(map(len, mcmc.diagnostics()["divergences"].values())),
    )


def p_value(ranks: Tensor, draws: int) -> float:
    """Of Pearson's test that ranks from 0 to ``draws`` are uniform, in bins."""
    edges = torch.linspace(-0.5, draws + 0.5, BINS + 1, dtype=torch.float64)
    counts = torch.histogram(ranks.double(), edges).hist
    inside = torch.histogram(torch.arange(draws + 1, dtype=torch.float64), edges).hist
    expected = inside * len(ranks) / (draws + 1)
    statistic = ((counts - expected).square() / expected).sum()
    return torch.special.gammaincc(torch.tensor((BINS - 1) / 2, dtype=torch.float64), statistic / 2).item()


def draw(ranks: Ranks, path: Path) -> None:
    """Histograms of the ranks with the range that 99% of uniform ones stay in."""
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    count, bins = len(ranks.curvature), BINS
    share = dist.Binomial(count, torch.tensor(1 / bins))
    cdf = torch.arange(count + 1.0).apply_(lambda k: share.log_prob(torch.tensor(float(k))).exp().item()).cumsum(0)
    low, high = (int((cdf < level).sum()) for level in (0.005, 0.995))
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.6), sharey=True, layout="constrained")
    for ax, (title, values) in zip(
        axes, {"curvature": ranks.curvature, "misfit of the distances": ranks.misfit}.items(), strict=True
    ):
        ax.axhspan(low, high, color="0.9")
        ax.axhline(count / bins, color="0.5", lw=1)
        ax.hist(values.numpy(), bins=torch.linspace(-0.5, ranks.draws + 0.5, bins + 1).numpy(), color="#3f90da", ec="w")
        ax.set_title(f"{title}, p = {p_value(values, ranks.draws):.2f}", fontsize=10)
        ax.set_xlabel(f"rank of the truth among {ranks.draws} samples")
    axes[0].set_ylabel("replicates")
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(args: argparse.Namespace) -> None:
    ranks = calibrate(args.replicates, args.samples, args.warmup)
    record = {
        "curvature": ranks.curvature.tolist(),
        "misfit": ranks.misfit.tolist(),
        "draws": ranks.draws,
        "p_curvature": p_value(ranks.curvature, ranks.draws),
        "p_misfit": p_value(ranks.misfit, ranks.draws),
        "n_eff_smallest": ranks.n_eff.min().item(),
        "n_eff_median": ranks.n_eff.median().item(),
        "r_hat_largest": ranks.r_hat.max().item(),
        "divergences": ranks.divergences,
    }
    print({key: value for key, value in record.items() if not isinstance(value, list)})
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "curvature_calibration.json").write_text(json.dumps(record) + "\n")
    draw(ranks, args.output / "curvature_calibration.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--warmup", type=int, default=160)
    parser.add_argument("--output", type=Path, default=FOLDER)
    main(parser.parse_args())
