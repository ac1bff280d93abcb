"""Fixtures that the tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pyro
import pytest
import torch


@pytest.fixture
def double() -> Iterator[None]:
    """Double precision, so that what is compared is the arithmetic and not its rounding."""
    pyro.clear_param_store()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    pyro.clear_param_store()
