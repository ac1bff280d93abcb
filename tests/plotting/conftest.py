"""Figures are made without a display and closed after each test."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import pytest

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def ax() -> Axes:
    return plt.subplots()[1]
