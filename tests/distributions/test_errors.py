"""Wrong input is a ValueError that names the argument."""

import math

import pytest
import torch

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.nn import ManifoldModule
from tests.distributions.cases import NORMALS

BALL = PoincareBall(1.0)
LOC = torch.zeros(3, 2)
BOTH = [hdist.WrappedNormal, hdist.RiemannianNormal]
W, R, H, S = hdist.WrappedNormal, hdist.RiemannianNormal, hdist.HyperbolicRadius, hdist.SphericalRadius


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize(
    ("loc", "message"),
    [
        pytest.param(torch.tensor([1.0, 0.0]), r"parameter loc .* constraint on\(PoincareBall", id="on the border"),
        pytest.param(torch.tensor([0.8, 0.8]), r"parameter loc .* constraint on\(PoincareBall", id="outside"),
        pytest.param(torch.tensor([math.nan, 0.0]), r"parameter loc .* constraint on\(PoincareBall", id="nan"),
        pytest.param(torch.tensor([[0.0, 0.0], [math.inf, 0.0]]), "parameter loc", id="one infinite of two"),
        pytest.param([0.0, 0.0], "loc must be a floating tensor", id="a list"),
        pytest.param(0.0, "loc must be a floating tensor", id="a number"),
        pytest.param(None, "loc must be a floating tensor", id="None"),
        pytest.param(torch.tensor(0.0), r"loc must be a floating tensor of shape .*unsqueeze", id="0-dim"),
        pytest.param(torch.zeros(2, dtype=torch.long), r"loc must .*got torch.int64; use loc.float\(\)", id="integers"),
        pytest.param(torch.zeros(3, 0), "loc must have at least one dimension", id="no dimension"),
    ],
)
def test_loc(distribution, loc, message):
    with pytest.raises(ValueError, match=message):
        distribution(loc, 1.0, BALL)


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, torch.tensor([[1.0], [0.0], [1.0]])], ids=str)
def test_scale_must_be_positive(distribution, scale):
    with pytest.raises(ValueError, match=r"parameter scale .*constraint"):
        distribution(LOC, scale, BALL)


@pytest.mark.parametrize("distribution", BOTH)
def test_scale_per_batch_element_needs_unsqueeze(distribution):
    with pytest.raises(ValueError, match=r"scale must be .*got \(3,\).*scale\.unsqueeze\(-1\)"):
        distribution(LOC, torch.ones(3), BALL)


@pytest.mark.parametrize("shape", [(2,), (3, 2)])
def test_riemannian_normal_is_isotropic(shape):
    with pytest.raises(ValueError, match=r"RiemannianNormal: scale must be .* isotropic.*WrappedNormal"):
        R(LOC, torch.ones(shape), BALL)


@pytest.mark.parametrize(("distribution", "keyword"), [(W, "scale"), (R, "scale"), (W, "scale_tril")])
def test_batch_shapes_must_broadcast(distribution, keyword):
    value = torch.ones(4, 1) if keyword == "scale" else torch.eye(2).expand(4, 2, 2)
    with pytest.raises(ValueError, match=rf"batch shapes \(3,\) of loc and \(4,\) of {keyword} do not broadcast"):
        distribution(LOC, manifold=BALL, **{keyword: value})


@pytest.mark.parametrize(
    ("arguments", "got"),
    [({}, "neither"), ({"scale": 1.0, "scale_tril": torch.eye(2)}, "both")],
    ids=["neither", "both"],
)
def test_exactly_one_of_scale_and_scale_tril(arguments, got):
    with pytest.raises(ValueError, match=f"exactly one of scale .* and scale_tril .*got {got}"):
        W(LOC, manifold=BALL, **arguments)


@pytest.mark.parametrize(
    ("scale_tril", "message"),
    [
        pytest.param(torch.eye(3), r"scale_tril must be a tensor \(..., 2, 2\), got \(3, 3\)", id="too large"),
        pytest.param(torch.ones(2), r"scale_tril must be a tensor \(..., 2, 2\), got \(2,\)", id="a vector"),
        pytest.param(1.0, r"scale_tril must be a tensor \(..., 2, 2\), got 1.0", id="a number"),
        pytest.param(torch.ones(2, 2), "parameter scale_tril", id="not triangular"),
        pytest.param(-torch.eye(2), "parameter scale_tril", id="negative diagonal"),
        pytest.param(math.nan * torch.eye(2), "parameter scale_tril", id="nan"),
    ],
)
def test_scale_tril(scale_tril, message):
    with pytest.raises(ValueError, match=message):
        W(LOC, manifold=BALL, scale_tril=scale_tril)


@pytest.mark.parametrize("manifold", [None, 1.0, "ball", PoincareBall, torch.tensor(1.0)], ids=str)
@pytest.mark.parametrize("distribution", BOTH)
def test_manifold_is_required(distribution, manifold):
    with pytest.raises(ValueError, match=r"manifold must be a manifold, got .*PoincareBall\(c=1\.0\)"):
        distribution(LOC, 1.0, manifold)


@pytest.mark.parametrize("distribution", BOTH)
def test_a_module_is_no_manifold(distribution):
    with pytest.raises(ValueError, match=r"manifold must be .*, got ManifoldModule(?s:.*); call it: manifold\(\)"):
        distribution(LOC, 1.0, ManifoldModule(BALL))


@pytest.mark.parametrize("distribution", BOTH)
def test_manifold_may_not_be_left_out(distribution):
    with pytest.raises(ValueError, match="manifold must be a manifold, got None"):
        distribution(LOC, 1.0)


@pytest.mark.parametrize("case", NORMALS, ids=str)
def test_value_of_log_prob(case):
    distribution = case.make((3,))
    value = distribution.sample()
    too_many, other_batch = torch.cat([value, value], -1), torch.cat([value, value], 0)
    for bad in (value * math.nan, too_many, other_batch, 0.0):
        with pytest.raises(ValueError, match=r"[Vv]alue"):
            distribution.log_prob(bad)


@pytest.mark.parametrize("distribution", BOTH)
@pytest.mark.parametrize("value", [[1.0, 0.0], [0.9, 0.9], [math.inf, 0.0]], ids=str)
def test_value_outside_of_the_ball(distribution, value):
    with pytest.raises(ValueError, match=r"value .* within the support \(on\(PoincareBall\(c=1.0\)\)\)"):
        distribution(LOC, 1.0, BALL).log_prob(torch.tensor(value))


def test_the_support_in_a_message_may_be_in_training():
    c = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(ValueError, match=r"PoincareBall\(c=1.0\)"):
        W(LOC, 1.0, PoincareBall(c)).log_prob(torch.ones(2))


@pytest.mark.parametrize("distribution", [H, S, hdist.HypersphericalUniform])
@pytest.mark.parametrize("dim", [0, -1, 2.0, True, None, torch.tensor(2)], ids=str)
def test_dim(distribution, dim):
    arguments = () if distribution is hdist.HypersphericalUniform else (1.0, 1.0)
    with pytest.raises(ValueError, match=f"{distribution.__name__}: dim must be a positive integer, got"):
        distribution(dim, *arguments)


@pytest.mark.parametrize(
    ("scale", "c", "message"),
    [
        (0.0, 1.0, "parameter scale"),
        (-1.0, 1.0, "parameter scale"),
        (math.nan, 1.0, "parameter scale"),
        (1.0, -1.0, "parameter c"),
        (1.0, math.nan, "parameter c"),
        (torch.ones(3), torch.ones(2), r"shapes \(3,\) of scale and \(2,\) of c do not broadcast"),
    ],
    ids=str,
)
def test_parameters_of_the_radius(scale, c, message):
    for distribution in (H, S):
        with pytest.raises(ValueError, match=message):
            distribution(2, scale, c)


@pytest.mark.parametrize("method", ["log_prob", "cdf"])
@pytest.mark.parametrize("value", [-0.1, math.nan])
def test_value_of_the_radius(method, value):
    for distribution in (H, S):
        with pytest.raises(ValueError, match="value"):
            getattr(distribution(2, 1.0, 1.0), method)(torch.tensor(value))


def test_beyond_the_antipode():
    with pytest.raises(ValueError, match="value"):
        S(2, 1.0, 1.0).log_prob(torch.tensor(3.2))


@pytest.mark.parametrize("u", [-0.1, 1.1, math.nan])
def test_probability_of_a_quantile(u):
    for distribution in (H, S):
        with pytest.raises(ValueError, match=rf"{distribution.__name__}: .* probabilities in \[0, 1\]"):
            distribution(2, 1.0, 1.0).icdf(torch.tensor(u))


def test_value_off_the_sphere():
    with pytest.raises(ValueError, match="value"):
        hdist.HypersphericalUniform(2).log_prob(torch.ones(2))


@pytest.mark.parametrize(
    "c", [-1.0, math.nan, math.inf, "1", True, torch.tensor(-1.0), torch.tensor([1.0, -1.0])], ids=str
)
def test_curvature_of_the_constraint(c):
    with pytest.raises(ValueError, match="c must be"):
        hdist.constraints.on(PoincareBall(c))


def test_ends_of_the_radius_are_allowed():
    distribution = H(3, 1.0, 1.0)
    ends = torch.tensor([0.0, math.inf])
    torch.testing.assert_close(distribution.cdf(ends), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(distribution.icdf(torch.tensor([0.0, 1.0])), ends)
    assert (distribution.log_prob(ends) == -math.inf).all()


POORER = [torch.float16, torch.bfloat16, torch.complex64]


@pytest.mark.parametrize("dtype", POORER, ids=str)
@pytest.mark.parametrize("distribution", BOTH)
def test_precision_of_the_arguments(distribution, dtype):
    message = "must be a floating tensor" if dtype.is_complex else "must be float32 or float64, got"
    for arguments in [(LOC.to(dtype), 1.0), (LOC, torch.ones(3, 1, dtype=dtype))]:
        with pytest.raises(ValueError, match=f"{message}|scale must be float32 or float64"):
            distribution(*arguments, BALL)
    with pytest.raises(ValueError, match=r"c must be|float32"):
        distribution(LOC, 1.0, PoincareBall(torch.tensor(1.0).to(dtype)))
    with pytest.raises(ValueError, match="float32 or float64"):
        distribution(LOC, 1.0, BALL, validate_args=False).log_prob(LOC.to(dtype))


@pytest.mark.parametrize("dtype", POORER, ids=str)
def test_precision_of_radius_and_sphere(dtype):
    one = torch.tensor(1.0).to(dtype)
    for arguments in [(one, 1.0), (1.0, one)]:
        for distribution in (H, S):
            with pytest.raises(ValueError, match=f"{distribution.__name__}: .* must be float32 or float64, got"):
                distribution(2, *arguments)
    with pytest.raises(ValueError, match="dtype must be float32 or float64, got"):
        hdist.HypersphericalUniform(2, dtype=dtype)
