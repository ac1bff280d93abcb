"""Classes look different from each other, to every reader."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from pyro_hyperbolic.plotting.canvas import PALETTE
from pyro_hyperbolic.plotting.labels import COLOURS, Classes, Numbers, classify

# Linear RGB as readers without one kind of cone see it: G. M. Machado et al., A physiologically-based model for
# simulation of color vision deficiency (2009), severity 1.
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def oklab(colours: Any, sight: Any) -> np.ndarray:
    """B. Ottosson's coordinates, whose distances are those of perception."""
    s = np.array([to_rgb(colour) for colour in colours])
    linear = np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ np.array(sight).T, 0, 1)
    cones = linear @ np.array(
        [
            [0.4122214708, 0.2119034982, 0.0883024619],
            [0.5363325363, 0.6806995451, 0.2817188376],
            [0.0514459929, 0.1073969566, 0.6299787005],
        ]
    )
    return np.cbrt(cones) @ np.array(
        [
            [0.2104542553, 1.9779984951, 0.0259040371],
            [0.7936177850, -2.4285922050, 0.7827717662],
            [-0.0040720468, 0.4505937099, -0.8086757660],
        ]
    )


def smallest_difference(colours: Any, sight: str) -> float:
    lab = oklab(colours, SIGHTS[sight])
    return min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(lab, 2))


@pytest.mark.parametrize("sight", SIGHTS)
def test_ten_colours_differ_for_every_reader(sight: str) -> None:
    assert smallest_difference(COLOURS, sight) > (0.19 if sight == "all cones" else 0.118)
    # The colours of lines, which no picture uses for more than five things, are not enough.
    assert smallest_difference(PALETTE, sight) < 0.1


def test_colours_are_seen_on_white_and_on_black() -> None:
    lightness = oklab(COLOURS, np.eye(3))[:, 0]
    assert lightness.min() > 0.48
    assert lightness.max() < 0.88


def test_twenty_classes_have_twenty_looks() -> None:
    classes = Classes([str(i) for i in range(20)], np.arange(20))
    looks = [classes.look(i) for i in range(20)]
    assert len(set(looks)) == 20
    assert {marker for _, marker in looks} == {0, 1}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (torch.tensor([3, 1, 3]), ["1", "3"]),
        (np.array([10, 9, 10]), ["9", "10"]),
        ([True, False, True], ["False", "True"]),
        (["b", "a", "b"], ["a", "b"]),
        (np.array(["b", None, "b"], dtype=object), ["None", "b"]),
        ([0.5, 1.0, 0.5], None),
        (torch.tensor([3, 1, 3], dtype=torch.int32), ["1", "3"]),
    ],
)
def test_what_labels_are(labels: Any, expected: list[str] | None) -> None:
    found = classify(labels, 3)
    if expected is None:
        assert isinstance(found, Numbers)
        assert found.values.tolist() == list(labels)
    else:
        assert isinstance(found, Classes)
        assert found.names == expected
        assert found.index.tolist() == ([1, 0, 1])


def test_twenty_integers_are_classes_and_more_are_numbers() -> None:
    assert isinstance(classify(torch.arange(20), 20), Classes)
    assert isinstance(classify(torch.arange(21), 21), Numbers)
    assert isinstance(classify(torch.arange(21), 21, classes=True), Classes)
    assert isinstance(classify(torch.arange(20), 20, classes=False), Numbers)
    assert isinstance(classify([0.5, 1.5], 2, classes=True), Classes)


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"labels must have one entry per point, \(4,\), got \(3,\)"):
        classify([1, 2, 3], 4)
    with pytest.raises(ValueError, match="labels must be numbers with classes=False"):
        classify(["a", "b"], 2, classes=False)
    with pytest.raises(ValueError, match="labels must be finite"):
        classify([0.5, float("nan")], 2)
