"""What every distribution owes to torch and Pyro, whatever it is a distribution of."""

import copy
import pickle

import pyro.distributions as dist
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from tests.distributions.cases import (
    DISTRIBUTIONS,
    NORMALS,
    ON_THE_BALL,
    RADII,
    SPHERES,
    WINDING,
    WITH_PARAMETERS,
    tensors,
    with_shapes,
)
from tests.helpers import DTYPES, ROUNDING, each, in_turns

every_distribution = each("case", DISTRIBUTIONS)
every_normal = each("case", NORMALS)
every_dtype = each("dtype", DTYPES)


@pytest.mark.parametrize(("case", "first", "second", "batch"), with_shapes(DISTRIBUTIONS), ids=str)
def test_shapes(case, first, second, batch):
    if getattr(case, "kind", None) == "number":
        batch = first  # its scale has no batch
    distribution = case.make(first, second)
    assert distribution.batch_shape == batch
    assert distribution.event_shape == case.event_shape
    for sample_shape in [(), (5,), (4, 1)]:
        sample = distribution.rsample(sample_shape)
        assert sample.shape == sample_shape + batch + case.event_shape
        assert distribution.log_prob(sample).shape == sample_shape + batch


@every_distribution
def test_sample_shape_may_be_any_sequence(case):
    distribution = case.make((3,))
    for kind in (list, tuple, torch.Size):
        assert distribution.sample(kind([2])).shape == (2, 3, *case.event_shape)


@every_distribution
def test_empty_batch(case):
    # torch cannot validate an empty batch of matrices.
    distribution = case.make((0,), validate_args=False if getattr(case, "kind", None) == "full" else None)
    assert distribution.log_prob(distribution.rsample()).shape == (0,)


@each("case", WITH_PARAMETERS)
def test_sample_has_no_graph(case):
    distribution = case.make()
    for parameter in distribution.arg_constraints:
        getattr(distribution, parameter).requires_grad_()
    assert distribution.rsample().requires_grad
    assert not distribution.sample().requires_grad


@every_dtype
@every_distribution
def test_dtype_is_kept(case, dtype):
    distribution = case.make((3,), dtype=dtype)
    sample = distribution.rsample((2,))
    assert {sample.dtype, distribution.log_prob(sample).dtype, distribution.log_prob(sample.clone()).dtype} == {dtype}
    assert case in WINDING or distribution.mean.dtype == dtype


@every_dtype
@every_normal
def test_dtype_is_that_of_loc_whatever_that_of_c(case, dtype):
    (other,) = set(DTYPES) - {dtype}
    distribution = case.on(case.coords(dtype=dtype), c=torch.tensor(case.c, dtype=other))
    sample = distribution.rsample()
    assert {sample.dtype, distribution.log_prob(sample).dtype, distribution.log_prob(sample.clone()).dtype} == {dtype}


@every_dtype
@every_distribution
def test_samples_are_in_the_support(case, dtype):
    distribution = case.make((3,), dtype=dtype)
    inside = distribution.support.check(distribution.rsample((1000,)))
    assert inside.shape == (1000, 3)
    assert inside.all()


# One of each distribution and chart: of the rest, shapes alone differ.
@pytest.mark.parametrize(
    "case", list({(case.distribution, getattr(case, "chart", None)): case for case in DISTRIBUTIONS}.values()), ids=str
)
def test_on_the_meta_device(case):
    """Shapes without values; nothing may look at those, nor may validation."""
    if case in SPHERES:
        distribution = case.distribution(case.dim, device=torch.device("meta")).expand((3,))
    else:
        params = case.params((3,)).items()
        distribution = case.on(
            {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in params}
        )
    sample = distribution.rsample((2,))
    assert sample.is_meta
    assert sample.shape == (2, 3, *case.event_shape)
    for log_prob in (distribution.log_prob(sample), distribution.log_prob(sample.clone())):
        assert log_prob.is_meta
        assert log_prob.shape == (2, 3)


@every_distribution
def test_support_has_the_event_dimension(case):
    distribution = case.make()
    assert distribution.support.event_dim == distribution.event_dim == len(case.event_shape)


@every_dtype
@every_distribution
def test_parameters_satisfy_their_constraints(case, dtype):
    distribution = case.make((3,), dtype=dtype)
    for name, constraint in distribution.arg_constraints.items():
        satisfied = constraint.check(getattr(distribution, name))
        assert satisfied.shape == (3,), name
        assert satisfied.all(), name


@each("case", WITH_PARAMETERS)
def test_arg_constraints_name_the_parameters_given(case):
    assert set(case.make().arg_constraints) == set(case.params())


@each("case", WITH_PARAMETERS)
def test_rsample_has_gradients(case):
    leaves = tensors(case.params((3,)))
    distribution = case.on({**case.params((3,)), **leaves})
    assert distribution.has_rsample
    for name, gradient in zip(
        leaves, torch.autograd.grad(distribution.rsample((5,)).sum(), leaves.values()), strict=True
    ):
        # In one dimension there is no curvature, but a circle has an end.
        flat = name == "c" and case.dim == 1 and case.distribution is not hdist.SphericalRadius
        assert gradient.isfinite().all()
        assert (gradient.abs() < 1e-14).all() == flat, name


@each("case", [case for case in NORMALS if case not in WINDING])
def test_mean_and_mode_of_a_normal_are_loc(case):
    distribution = case.make((3,))
    torch.testing.assert_close(distribution.mean, case.params((3,))["loc"], rtol=0, atol=0)
    torch.testing.assert_close(distribution.mode, case.params((3,))["loc"], rtol=0, atol=0)


@each("case", [*RADII, *SPHERES])
def test_mean_is_that_of_samples(case):
    sample = case.make((3,)).sample((20_000,))
    error = (sample.mean(0) - case.make((3,)).mean).abs()
    assert (error < 5 * sample.std(0) / 20_000**0.5).all()


@each("case", [*RADII, *SPHERES])
def test_variance_is_that_of_samples(case):
    distribution = case.make((3,))
    square = (distribution.sample((20_000,)) - distribution.mean).square()
    error = (square.mean(0) - distribution.variance).abs()
    assert (error < 5 * square.std(0) / 20_000**0.5 + ROUNDING[torch.float64]).all()


@every_distribution
def test_log_prob_broadcasts_values_against_the_batch(case):
    distribution = case.make((3,))
    values = case.make().sample((4, 1))
    log_prob = distribution.log_prob(values)
    expected = torch.stack([distribution.log_prob(value.expand((3, *case.event_shape))) for value in values])
    assert log_prob.shape == (4, 3)
    torch.testing.assert_close(log_prob, expected)


@every_distribution
def test_log_prob_broadcasts_one_distribution_over_many_values(case):
    distribution = case.make()
    values = distribution.sample((2, 5))
    expected = torch.stack([distribution.log_prob(value) for value in values.reshape(10, *case.event_shape)])
    torch.testing.assert_close(distribution.log_prob(values), expected.reshape(2, 5))


@every_distribution
def test_a_sample_may_be_changed_or_become_a_parameter(case):
    """It is then a value like any other, of which nothing is known from the draw."""
    p = case.make()
    other, x = p.sample((4,)), p.sample((4,))
    expected = p.log_prob(other.clone())
    x.copy_(other)
    torch.testing.assert_close(p.log_prob(x), expected)
    x = p.sample((4,))
    known = x.clone().requires_grad_()
    if not p.log_prob(known).requires_grad:
        return  # of the uniform distribution
    [expected] = torch.autograd.grad(p.log_prob(known).sum(), known)
    x.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(p.log_prob(x).sum(), x)[0], expected)


@each("validate_args", [True, False])
@every_distribution
def test_expand_keeps_type_and_validation(case, validate_args):
    distribution = case.make((3,), validate_args=validate_args).expand((2, 3))
    assert type(distribution) is case.distribution
    assert distribution._validate_args is validate_args
    assert (distribution.batch_shape, distribution.event_shape) == ((2, 3), case.event_shape)


@every_distribution
def test_expand_repeats_the_parameters(case):
    distribution = case.make((3, 1))
    expanded = distribution.expand((2, 3, 4))
    for name in distribution.arg_constraints:
        value = getattr(distribution, name)
        parameter = value.expand((2, 3, 4) + value.shape[2:])
        torch.testing.assert_close(getattr(expanded, name), parameter, rtol=0, atol=0)


@every_distribution
def test_expand_keeps_the_density(case):
    distribution = case.make((3,))
    expanded = distribution.expand((2, 3))
    value = expanded.sample()
    torch.testing.assert_close(expanded.log_prob(value), distribution.log_prob(value))
    if case not in WINDING:
        torch.testing.assert_close(expanded.mean, distribution.mean.expand_as(expanded.mean))


@every_distribution
def test_expanded_samples_differ_along_the_new_dimension(case):
    sample = case.make((3,)).expand((40, 3)).rsample()
    assert (sample.amax(0) > sample.amin(0)).all()


@every_distribution
def test_expand_of_a_subclass_is_of_the_subclass(case):
    subclass = type("Sub", (case.distribution,), {})
    distribution = case.make((3,))
    distribution.__class__ = subclass
    assert type(distribution.expand((2, 3))) is subclass


@every_distribution
def test_expand_by(case):
    distribution = case.make((3,))
    assert distribution.expand_by((2, 4)).batch_shape == (2, 4, 3)


@every_distribution
def test_to_event(case):
    distribution = case.make((2, 3))
    value = distribution.sample((5,))
    for k in (0, 1, 2):
        joint = distribution.to_event(k)
        assert (joint.batch_shape, joint.event_shape) == (
            distribution.batch_shape[: 2 - k],
            (2, 3)[2 - k :] + case.event_shape,
        )
        expected = distribution.log_prob(value).flatten(3 - k).sum(-1) if k else distribution.log_prob(value)
        torch.testing.assert_close(joint.log_prob(value), expected)


@every_distribution
def test_torch_independent(case):
    distribution = case.make((2, 3))
    joint = torch.distributions.Independent(distribution, 1)
    sample = joint.rsample((5,))
    assert sample.shape == (5, 2, 3, *case.event_shape)
    torch.testing.assert_close(joint.log_prob(sample), distribution.log_prob(sample.clone()).sum(-1))
    assert joint.support.check(sample).all()


@every_distribution
def test_mask(case):
    distribution = case.make((3,))
    value = distribution.sample()
    masked = distribution.mask(torch.tensor([True, False, True])).log_prob(value)
    torch.testing.assert_close(masked, distribution.log_prob(value) * torch.tensor([1.0, 0.0, 1.0]))


@each(("case", "family"), in_turns(DISTRIBUTIONS, [dist.MixtureSameFamily, torch.distributions.MixtureSameFamily]))
def test_mixture_density_is_a_weighted_sum(case, family):
    components = case.make((2, 4))
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]], dtype=torch.float64)
    mixture = family(dist.Categorical(weights), components)
    sample = mixture.sample((5,))
    each = components.log_prob(sample.unsqueeze(2)) + weights.log()
    assert sample.shape == (5, 2, *case.event_shape)
    assert mixture.support.check(sample).all()
    torch.testing.assert_close(mixture.log_prob(sample), each.logsumexp(-1))


@every_distribution
def test_pickle(case):
    distribution = case.make((3,))
    value = distribution.rsample()
    again = pickle.loads(pickle.dumps(distribution))
    assert type(again) is case.distribution
    assert (again.batch_shape, again.event_shape) == (distribution.batch_shape, distribution.event_shape)
    torch.testing.assert_close(again.log_prob(value), distribution.log_prob(value.clone()), rtol=0, atol=0)


@every_distribution
def test_deepcopy_draws_the_same(case):
    distribution = case.make((3,))
    distribution.rsample()
    again = copy.deepcopy(distribution)
    torch.manual_seed(1)
    sample = distribution.rsample()
    torch.manual_seed(1)
    torch.testing.assert_close(again.rsample(), sample, rtol=0, atol=0)


COPIERS = {"copy": copy.deepcopy, "pickle": lambda distribution: pickle.loads(pickle.dumps(distribution))}


@each(("case", "copier"), in_turns(WITH_PARAMETERS, COPIERS))
def test_copy_with_parameters_in_training(case, copier):
    params = {**case.params((3,)), **tensors(case.params((3,)))}
    distribution = case.on(params)
    value = distribution.rsample()
    again = COPIERS[copier](distribution)
    (name, *_) = again.arg_constraints
    assert getattr(again, name).requires_grad
    assert getattr(again, name) is not getattr(distribution, name)
    torch.testing.assert_close(again.log_prob(value), distribution.log_prob(value.clone()))


@every_normal
def test_deepcopy_with_a_curvature_in_training(case):
    c = torch.tensor(case.c, dtype=torch.float64, requires_grad=True)
    distribution = case.on(case.params(), c=c)
    value = distribution.rsample().detach()
    again = copy.deepcopy(distribution)
    if not distribution.manifold.curvatures:
        return
    gradient = sum(torch.autograd.grad(again.log_prob(value), set(again.manifold.curvatures)))
    torch.testing.assert_close(gradient, torch.autograd.grad(distribution.log_prob(value), c)[0])


@every_distribution
def test_repr_names_distribution_and_parameters(case):
    distribution = case.make((3,))
    assert all(name in repr(distribution) for name in [case.distribution.__name__, *distribution.arg_constraints])


@every_distribution
def test_a_seed_determines_the_samples(case):
    distribution = case.make((3,))
    torch.manual_seed(5)
    first, second = distribution.rsample((4,)), distribution.rsample((4,))
    torch.manual_seed(5)
    torch.testing.assert_close(distribution.rsample((4,)), first, rtol=0, atol=0)
    assert (first != second).any()


class ReadsOfTheHost(TorchDispatchMode):
    """Counts how often the value of a tensor is read on the host."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
            self.count += 1
        return func(*args, **(kwargs or {}))


def _reads(case, validate_args):
    with ReadsOfTheHost() as reads:
        distribution = case.make((3,), validate_args=validate_args)
        distribution.log_prob(distribution.rsample((2,)).clone())
        distribution.expand((2, 3)).rsample()
    return reads.count


@every_distribution
def test_validation_off_reads_nothing_on_the_host(case):
    case.make((3,)).rsample()  # tables are made once, and kept
    assert _reads(case, validate_args=False) == 0


@every_distribution
def test_validation_on_reads_values(case):
    assert _reads(case, validate_args=True) > 0


@each("case", ON_THE_BALL)
def test_validation_off_lets_anything_pass(case):
    distribution = case.make(validate_args=False)
    border = torch.full(case.event_shape, 2.0, dtype=torch.float64)
    assert not distribution.log_prob(border).isfinite()


@each("case", [case for case in NORMALS if case.distribution is hdist.WrappedNormal])
def test_covariance_matrix(case):
    distribution = case.make((3,))
    params = case.params((3,))
    if case.kind == "full":
        root = params["scale_tril"]
    else:
        scale = torch.as_tensor(params["scale"], dtype=torch.float64)
        root = torch.diag_embed(scale.expand(3, case.dim))
    torch.testing.assert_close(distribution.covariance_matrix, root @ root.mT, rtol=ROUNDING[torch.float64], atol=1e-15)


def test_third_positional_argument_is_the_manifold():
    loc = torch.zeros(2)
    for distribution in (hdist.WrappedNormal, hdist.RiemannianNormal):
        assert distribution(loc, 1.0, PoincareBall(0.3)).manifold == PoincareBall(0.3)


@every_normal
def test_variance_of_coordinates_is_refused(case):
    with pytest.raises(
        NotImplementedError, match=r"not lengths.* see (covariance_matrix|mean and variance of (Hyper|Spher))"
    ):
        _ = case.make().variance


@each(("case", "first", "second", "batch"), with_shapes(WITH_PARAMETERS))
def test_infer_shapes(case, first, second, batch):
    params = case.params(first, second)
    distribution = case.on(params)
    shapes = {name: value.shape for name, value in params.items() if isinstance(value, torch.Tensor)}
    assert case.distribution.infer_shapes(**shapes) == (distribution.batch_shape, distribution.event_shape)


def test_shapes_of_a_sphere_cannot_be_inferred():
    with pytest.raises(NotImplementedError, match="the event shape is dim"):
        hdist.HypersphericalUniform.infer_shapes()


@every_normal
def test_repr_names_the_manifold(case):
    assert repr(case.manifold) in repr(case.make((3,)))


@every_distribution
def test_expand_to_a_wrong_shape(case):
    distribution = case.make().expand([2, 4])
    for shape in ([3], [2, 3], [4, 2], []):
        with pytest.raises((ValueError, RuntimeError)):
            distribution.expand(shape)


@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
def test_integers_are_numbers(distribution):
    """No parameter is computed with as an integer."""
    ball, value = PoincareBall(1), torch.full((2,), 0.3)
    expected = distribution(torch.zeros(2), 2.0, PoincareBall(1.0)).log_prob(value)
    for scale in (2, torch.tensor(2), torch.tensor([2], dtype=torch.int32)):
        torch.testing.assert_close(distribution(torch.zeros(2), scale, ball).log_prob(value), expected)
    scale_tril = 2 * torch.eye(2, dtype=torch.long)
    if distribution is hdist.WrappedNormal:
        torch.testing.assert_close(
            distribution(torch.zeros(2), manifold=ball, scale_tril=scale_tril).log_prob(value), expected
        )
    radius = hdist.HyperbolicRadius(2, torch.tensor(2), torch.tensor(1))
    torch.testing.assert_close(radius.icdf(value), hdist.HyperbolicRadius(2, 2.0, 1.0).icdf(value))
