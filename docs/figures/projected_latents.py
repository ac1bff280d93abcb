"""Draw ``docs/figures/projected_latents.png``: latents of MNIST in 5, 10 and 20 dimensions, projected to the disc.

    python examples/mnist_svi.py --space p5 --num-epochs 5 --iwae-samples 0 --fast --output-dir outputs/mnist-5
    (and so on for 10 and 20)
    python docs/figures/projected_latents.py outputs/mnist-5 outputs/mnist-10 outputs/mnist-20

The auto-encoders are those of the paper's Table 2 (c = 1.4, seed 0), trained for five epochs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch

from pyro_hyperbolic import PoincareBall, datasets, plotting
from pyro_hyperbolic.analysis import HoroPCA, Projection, TangentPCA
from pyro_hyperbolic.infer import load_checkpoint

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1] / "examples"))

import mnist_svi  # noqa: E402

DIGITS = 2000
PROJECTIONS: tuple[type[Projection], ...] = (TangentPCA, HoroPCA)


def main(args: argparse.Namespace) -> None:
    figure, axes = plt.subplots(
        len(PROJECTIONS), len(args.folders), figsize=(3.4 * len(args.folders) + 0.6, 7.2), layout="constrained"
    )
    for column, folder in zip(axes.T, args.folders, strict=True):
        state = load_checkpoint(folder / "checkpoint.pt", map_location="cpu")
        vae = mnist_svi.VAE(argparse.Namespace(**state["options"]))
        vae.load_state_dict(state["state"]["model"])
        test = datasets.mnist(state["options"]["data_dir"], train=False)
        with torch.no_grad():
            z = vae.encode(test.images[:DIGITS]).mean
        ball = PoincareBall(float(vae.space.c))
        for ax, kind in zip(column, PROJECTIONS, strict=True):
            pca = kind(2).fit(z, ball)
            labels = test.labels[:DIGITS]
            plotting.embedding(pca.transform(z), ball, labels, ax=ax, s=4, legend=ax is axes[0, -1])
            share = 100 * pca.explained_variance_ratio
            ax.set_title(f"d = {z.shape[-1]}, {kind.__name__}: {share:.0f}%", fontsize="medium")
            print(f"d = {z.shape[-1]}, {kind.__name__}: {share:.1f}% of the squared distances")
    plotting.save(figure, FOLDER / "projected_latents.png", dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, help="of runs of examples/mnist_svi.py")
    main(parser.parse_args())
