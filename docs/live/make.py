"""What the live pages of the documentation show, from the folders of examples that have been run.

    python examples/mnist_svi.py --num-epochs 10 --fast --output-dir outputs/mnist
    python docs/live/make.py mnist outputs/mnist
    python examples/bayesian_tree.py --output-dir outputs/tree
    python examples/leaf_regions.py --posterior outputs/tree/posterior.pt --output-dir outputs/taxonomy
    python docs/live/make.py taxonomy outputs/taxonomy
    python -m experiments.link_prediction --space p2 --seeds 1 --output-dir outputs/karate
    python docs/live/make.py karate outputs/karate

The files hold the data of a page without its script; docs/live/pages.py makes the pages, with the script of the day.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples"))

DIGITS = 1000


def content_of(page: Path) -> dict[str, Any]:
    """The data of a page."""
    (data,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', page.read_text("utf-8"), re.DOTALL
    )
    return json.loads(data)


def mnist(folder: Path) -> dict[str, Any]:
    """The first test digits only: a page of all is larger than the rest of the documentation."""
    import mnist_parts
    import mnist_svi

    from pyro_hyperbolic import datasets, plotting
    from pyro_hyperbolic.infer import load_checkpoint

    state = load_checkpoint(folder / "checkpoint.pt")
    args = argparse.Namespace(**state["options"])
    vae = mnist_svi.VAE(args)
    vae.load_state_dict(state["state"]["model"])
    test = datasets.mnist(state["options"]["data_dir"], train=False)
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary, "page.html")
        images, labels = test.images[:DIGITS], test.labels[:DIGITS]
        names = [f"{digit} (test image {i})" for i, digit in enumerate(labels.tolist())]
        about = f"Each dot is one of {DIGITS:,} test digits, where the encoder puts it."
        plotting.explore_latents(
            mnist_parts.library_model(vae, args),
            images,
            page,
            labels,
            names,
            images,
            title="Latent space of MNIST",
            description=about,
        )
        return content_of(page)


def main(args: argparse.Namespace) -> None:
    content = mnist(args.folder) if args.name == "mnist" else content_of(args.folder / "latent.html")
    path = HERE / f"{args.name}.json.gz"
    # Without the time of day, so that the same data make the same file.
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=["karate", "mnist", "taxonomy"])
    parser.add_argument("folder", type=Path, help="of the results of the example")
    main(parser.parse_args())
