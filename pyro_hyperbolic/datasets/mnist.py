"""MNIST, from wherever it can be had."""

from __future__ import annotations

import contextlib
import http.client
import importlib.resources
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from pyro_hyperbolic.datasets._torchvision import import_torchvision
from pyro_hyperbolic.datasets.download import STALL_SECONDS, reachable
from pyro_hyperbolic.datasets.idx import read_idx
from pyro_hyperbolic.datasets.paths import ENVIRONMENT_VARIABLE, data_root

_PREFIX = {True: "train", False: "t10k"}
_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
#: Where the four files may lie below the root; torchvision keeps them in the second place.
_FOLDERS = ("", "MNIST/raw", "mnist")
_SIDE = 28
_CLASSES = 10

_notified = False


class BundledDataWarning(UserWarning):
    """The small bundled subset stands in for a data set that could not be had."""


@dataclass(frozen=True, eq=False)
class Digits:
    """Images and their labels; unpacks as ``images, labels = mnist()``.

    Attributes:
        images: float32 ``(N, 28, 28)``, grey levels in [0, 1].
        labels: int64 ``(N,)``, the digits.
        source: where the images were read from: a path, or ``"bundled subset"``.
    """

    images: Tensor
    labels: Tensor
    source: str

    def __iter__(self) -> Iterator[Tensor]:
        yield self.images
        yield self.labels


def mnist(
    root: str | os.PathLike[str] | None = None,
    train: bool = True,
    *,
    download: bool = True,
    bundled: bool = False,
) -> Digits:
    """The MNIST digits: 60,000 images for training and 10,000 for testing.

    They come from the first of these places that has them:

    1. the IDX files (plain or gzipped) in ``root``, ``root/MNIST/raw`` (torchvision's place) or
       ``root/mnist``;
    2. a download with torchvision, where that is installed and the network is up;
    3. the subset that comes with this package, 5,000 and 1,000 real MNIST images, 500 and
       100 of each digit; a :class:`BundledDataWarning` says so, once per process.

    Files that are there but damaged or incomplete are an error, never replaced by the subset.

    Args:
        root: folder of the data. Default: the environment variable ``PYRO_HYPERBOLIC_DATA``, then
            a per-user cache folder.
        train: the training set or the test set.
        download: whether the second step is allowed.
        bundled: go straight to the third step, without a warning; for tests and demonstrations.

    Returns:
        :class:`Digits`, with ``images`` ``(N, 28, 28)`` and ``labels`` ``(N,)``.

    Raises:
        ValueError: if a file is damaged, or only a part of the files is there.

    References:
        Y. LeCun, C. Cortes, C. Burges: The MNIST database of handwritten digits.

    Example:
        >>> images, labels = mnist(train=False, bundled=True)
        >>> images.shape, labels.bincount().tolist()
        (torch.Size([1000, 28, 28]), [100, 100, 100, 100, 100, 100, 100, 100, 100, 100])
    """
    if bundled:
        return _read_bundled(train)
    folder = data_root(root)
    files = _locate(folder, train)
    if files is None:
        obstacle = _download(folder) if download else "download=False forbids fetching it"
        files = _locate(folder, train)
        if files is None:
            _refuse_to_mix(folder, train, obstacle)
            _notify(folder, obstacle)
            return _read_bundled(train)
    return _read(*files, source=str(files[0].parent))


def _locate(root: Path, train: bool) -> tuple[Path, Path] | None:
    """The image and the label file, ``None`` if there is neither, an error if there is but one."""
    incomplete = None
    for folder in (root / name for name in _FOLDERS):
        images, labels = (_find(folder / f"{_PREFIX[train]}-{kind}") for kind in _KINDS)
        if images and labels:
            return images, labels
        if images or labels:
            missing = folder / f"{_PREFIX[train]}-{_KINDS[bool(images)]}"
            incomplete = incomplete or (images or labels, missing)
    if incomplete:
        raise ValueError(
            f"half a data set: {incomplete[0]} is there, but {incomplete[1]}[.gz] is not; "
            "put it there, or delete the first file to start afresh"
        )
    return None


def _find(path: Path) -> Path | None:
    candidates = (path, path.with_name(path.name + ".gz"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _read(images: Path, labels: Path, *, source: str) -> Digits:
    pixels, digits = read_idx(images, ndim=3), read_idx(labels, ndim=1)
    if pixels.shape[1:] != (_SIDE, _SIDE):
        raise ValueError(
            f"{images}: expected images of {_SIDE} x {_SIDE} pixels, "
            f"found {pixels.shape[1]} x {pixels.shape[2]}; put the MNIST file in its place"
        )
    if len(pixels) != len(digits):
        raise ValueError(
            f"{images} holds {len(pixels)} images but {labels} holds {len(digits)} labels; "
            "they are not of one data set: delete both and download them again"
        )
    if int(digits.max()) >= _CLASSES:
        raise ValueError(
            f"{labels}: expected labels 0 to {_CLASSES - 1}, found {int(digits.max())}; "
            "the file is damaged: delete it and download it again"
        )
    return Digits(images=pixels.float() / 255, labels=digits.long(), source=source)


def _read_bundled(train: bool) -> Digits:
    folder = importlib.resources.files("pyro_hyperbolic.datasets") / "data"
    with contextlib.ExitStack() as stack:  # as_file: the package may lie in a zip archive
        images, labels = (
            stack.enter_context(importlib.resources.as_file(folder / bundled_name(train, kind))) for kind in _KINDS
        )
        return _read(images, labels, source="bundled subset")


def bundled_name(train: bool, kind: str) -> str:
    """The name of a bundled file: ``train-images-subset-idx3-ubyte.gz`` and its like."""
    what, form = kind.split("-", 1)
    return f"{_PREFIX[train]}-{what}-subset-{form}.gz"


def _download(root: Path) -> str:
    """Fetch the four files into torchvision's place below ``root``; what went wrong, if so."""
    try:
        source = import_torchvision().datasets.MNIST
    except (ImportError, RuntimeError) as error:
        return f"torchvision, which would download it, cannot be imported ({error})"
    if not any(reachable(mirror) for mirror in source.mirrors):
        return "the servers that have it are out of reach"
    patience = socket.getdefaulttimeout()
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Whole, verified files are moved into place at the end: an interrupted download leaves
        # nothing behind that could be taken for data.
        with tempfile.TemporaryDirectory(dir=root, prefix=".mnist-") as scratch:
            socket.setdefaulttimeout(STALL_SECONDS)  # torchvision itself would wait for ever
            source(scratch, train=True, download=True)
            target = root / "MNIST" / "raw"
            target.mkdir(parents=True, exist_ok=True)
            for file in sorted((Path(scratch) / "MNIST" / "raw").glob("*-ubyte")):
                file.replace(target / file.name)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        return f"the download failed ({error})"
    finally:
        socket.setdefaulttimeout(patience)
    return "the download did not bring it"


def _refuse_to_mix(root: Path, train: bool, obstacle: str) -> None:
    other = _locate(root, not train)
    if other is not None:
        raise ValueError(
            f"{other[0].parent} holds the {_PREFIX[not train]} files but not the "
            f"{_PREFIX[train]} files, and {obstacle}; put these there too, or use an empty folder for "
            "the subset of both: half of MNIST beside half of its subset makes no sound data set"
        )


def _notify(root: Path, obstacle: str) -> None:
    global _notified
    if not _notified:
        warnings.warn(
            f"MNIST is not in {root}, and {obstacle}: using the bundled subset of 5,000 training "
            "and 1,000 test images. For the full set put the four IDX files into that folder or "
            f"one that {ENVIRONMENT_VARIABLE} names.",
            BundledDataWarning,
            stacklevel=3,
        )
        _notified = True
