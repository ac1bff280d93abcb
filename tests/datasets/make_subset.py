"""Make the bundled MNIST subset: ``python -m tests.datasets.make_subset FOLDER``.

``FOLDER`` holds the four original files. Of each digit, 500 training and 100 test images are kept,
at equal steps through the file and in their original order. Taking the first ones would not do: the
two halves of the test set come from different writers, and the first has clearly thinner strokes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

import pyro_hyperbolic.datasets
from pyro_hyperbolic.datasets.idx import read_idx, write_idx
from pyro_hyperbolic.datasets.mnist import _KINDS, _locate, bundled_name

#: Images of each digit, in the training set and in the test set.
PER_CLASS = {True: 500, False: 100}


def spread_over_each_class(labels: Tensor, count: int) -> Tensor:
    """Indices, ascending, of ``count`` items of each class, at equal steps through the class."""
    chosen = []
    for label in torch.unique(labels):
        members = (labels == label).nonzero().flatten()
        if len(members) < count:
            raise ValueError(
                f"class {int(label)} has {len(members)} items, fewer than the {count} wanted; take the original files"
            )
        chosen.append(members[torch.arange(count) * len(members) // count])
    return torch.cat(chosen).sort().values


def main(args: argparse.Namespace) -> None:
    """Read the original files and write their subset."""
    for train, count in PER_CLASS.items():
        files = _locate(args.source, train)
        if files is None:
            raise FileNotFoundError(f"{args.source} does not hold the MNIST files")
        images, labels = read_idx(files[0], ndim=3), read_idx(files[1], ndim=1)
        chosen = spread_over_each_class(labels, count)
        for kind, values in zip(_KINDS, (images, labels), strict=True):
            write_idx(args.target / bundled_name(train, kind), values[chosen])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder of the four original files")
    parser.add_argument("--target", type=Path, default=Path(pyro_hyperbolic.datasets.__file__).parent / "data")
    main(parser.parse_args())
