"""Every space as a row for the tests of this room; one of each kind by default, the others among the slow tests."""

from __future__ import annotations

import pytest

from tests.geometry.spaces import SPACES, SpaceCase

# Names of those that are tested by default; an iteration on a product of products takes long.
_USUAL = {"PoincareBall-d3-c1.4", "Lorentz-d3-c0.7", "Euclidean-d3-c1", "Sphere-d2-c0.7", "Stereographic-d2-c-0.8"}
_USUAL |= {"Product-d5-c1"}


def _row(case: SpaceCase) -> object:
    return pytest.param(case, id=str(case), marks=[] if str(case) in _USUAL else [pytest.mark.slow])


assert {str(case) for case in SPACES} > _USUAL
spaces = pytest.mark.parametrize("case", [_row(case) for case in SPACES])
