"""Fixtures for the tests and for the doctests of the package."""

import pyro
import pytest
import torch


@pytest.fixture(autouse=True)
def _reproducible(doctest_namespace):
    # torch.compile switches the validation of arguments off for the rest of the process.
    pyro.enable_validation(True)
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    doctest_namespace["torch"] = torch
    yield
    torch.set_default_dtype(torch.float32)
