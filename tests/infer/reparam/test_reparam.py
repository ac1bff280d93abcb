"""Points in other coordinates: the same program, and what HMC sees of it."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoIAFNormal, AutoMultivariateNormal, AutoNormal, init_to_mean, init_to_value
from pyro.infer.mcmc.util import initialize_model
from pyro.infer.reparam import NeuTraReparam

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz
from pyro_hyperbolic.infer import ManifoldReparam, NoiseReparam
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same

pytestmark = pytest.mark.usefixtures("double")

CHARTS = [PoincareBall(0.7), Lorentz(0.7)]
every_chart = pytest.mark.parametrize("chart", CHARTS, ids=repr)
SCALES = {
    "isotropic": {"scale": torch.tensor([0.6], dtype=torch.float64)},
    "diagonal": {"scale": torch.tensor([0.4, 0.9], dtype=torch.float64)},
    "full": {"scale_tril": torch.tensor([[0.5, 0.0], [0.3, 0.8]], dtype=torch.float64)},
}
every_scale = pytest.mark.parametrize("kind", SCALES)
# The distribution, the reparametriser and the site that it makes.
FORMS = {
    "noise of a wrapped normal": (hdist.WrappedNormal, NoiseReparam, "z_base"),
    "noise of a Riemannian normal": (hdist.RiemannianNormal, NoiseReparam, "z_base"),
    "coordinates of a wrapped normal": (hdist.WrappedNormal, ManifoldReparam, "z_coords"),
    "coordinates of a Riemannian normal": (hdist.RiemannianNormal, ManifoldReparam, "z_coords"),
}
every_form = pytest.mark.parametrize("form", FORMS)


def distribution(chart, kind="diagonal", family=hdist.WrappedNormal):
    scale = SCALES[kind] if family is hdist.WrappedNormal else SCALES["isotropic"]
    return family(chart.from_normal_coords(None, torch.tensor([0.5, -0.8])), manifold=chart, **scale)


def triangulation(chart, *args):
    anchors = chart.from_normal_coords(None, torch.tensor([[1.0, 0.3], [-0.5, 1.5], [0.2, -1.0]]))

    def model():
        z = pyro.sample("z", distribution(chart, *args))
        pyro.sample("x", dist.Normal(chart.dist(z.unsqueeze(-2), anchors), 0.5).to_event(1), obs=torch.ones(3))

    return model


def reparametrised(model, reparam=NoiseReparam):
    return poutine.reparam(model, config={"z": reparam()})


@every_scale
@every_chart
def test_it_draws_the_same_points(chart, kind):
    model = triangulation(chart, kind)
    torch.manual_seed(1)
    expected = poutine.trace(model).get_trace().nodes["z"]["value"]
    torch.manual_seed(1)
    trace = poutine.trace(reparametrised(model)).get_trace()
    assert trace.stochastic_nodes == ["z_base"]
    torch.testing.assert_close(trace.nodes["z"]["value"], expected)
    noise = trace.nodes["z_base"]
    assert noise["fn"].event_shape == (2,)
    same(noise["fn"].log_prob(noise["value"]), dist.Normal(0.0, 1.0).log_prob(noise["value"]).sum(), 1e-12)


@every_scale
@every_chart
def test_the_potential_of_hmc_is_the_same_in_other_coordinates(chart, kind):
    # The Lebesgue densities of the two coordinates differ by the Jacobian between them, and by nothing else.
    model = triangulation(chart, kind)
    centred, noncentred = (initialize_model(program)[1] for program in (model, reparametrised(model)))

    def to_centred(noise):
        return chart.to_normal_coords(None, distribution(chart, kind).from_noise(noise))

    for noise in torch.randn(5, 2):
        jacobian = torch.autograd.functional.jacobian(to_centred, noise)
        expected = centred({"z": to_centred(noise)}) - torch.linalg.slogdet(jacobian).logabsdet
        same(noncentred({"z_base": noise}), expected, 1e-9)


@every_form
@every_chart
def test_every_form_has_the_same_potential(chart, form):
    family, reparam, site = FORMS[form]
    model = triangulation(chart, "isotropic", family)
    other = reparametrised(model, reparam)
    plain, potential = (initialize_model(program)[1] for program in (model, other))

    def to_plain(value):
        with poutine.block():
            z = poutine.trace(poutine.condition(other, {site: value})).get_trace().nodes["z"]["value"]
        return chart.to_normal_coords(None, z)

    for value in torch.randn(3, 2):
        jacobian = torch.autograd.functional.jacobian(to_plain, value)
        expected = plain({"z": to_plain(value)}) - torch.linalg.slogdet(jacobian).logabsdet
        # The quantiles of the radius, and so their derivatives, come from a table.
        same(potential({site: value}), expected, 1e-4 if form == "noise of a Riemannian normal" else 1e-9)


@every_form
@every_chart
def test_every_form_draws_the_same_distribution(chart, form):
    family, reparam, _ = FORMS[form]

    def model():
        with pyro.plate("draws", 20_000):
            return pyro.sample("z", distribution(chart, "isotropic", family))

    plain, other = (
        torch.stack([chart.dist0(program()), chart.dist(program(), distribution(chart).loc)])
        for program in (model, reparametrised(model, reparam))
    )
    error = (plain.var(-1) + other.var(-1)).div(20_000).sqrt()
    assert ((plain.mean(-1) - other.mean(-1)).abs() < 4 * error).all()


@every_form
@every_chart
def test_wrappers_of_every_form(chart, form):
    family, reparam, site = FORMS[form]
    mask = torch.tensor([True, True, False, True])

    def model():
        with pyro.plate("data", 4):
            pyro.sample("z", distribution(chart, "isotropic", family).expand((4, 3)).to_event(1).mask(mask))

    trace = poutine.trace(reparametrised(model, reparam)).get_trace()
    trace.compute_log_prob()
    assert trace.nodes["z"]["value"].shape == (4, 3, chart.ambient_dim(2))
    assert trace.nodes[site]["fn"].event_shape == (3, 2)
    assert ((trace.nodes[site]["log_prob"] != 0) == mask).all()
    assert (trace.nodes["z"]["log_prob"] == 0).all()


@every_chart
def test_wrappers(chart):
    mask = torch.tensor([[True], [False], [True]])

    def model(inside):
        with pyro.plate("data", 4):
            points = distribution(chart).expand((4, 3, 2))
            points = points.mask(mask) if inside else points
            points = points.to_event(2)
            pyro.sample("z", points if inside else points.mask(torch.tensor([True, True, False, True])))

    for inside in (True, False):
        torch.manual_seed(1)
        expected = poutine.trace(model).get_trace(inside)
        torch.manual_seed(1)
        trace = poutine.trace(reparametrised(model)).get_trace(inside)
        torch.testing.assert_close(trace.nodes["z"]["value"], expected.nodes["z"]["value"])
        trace.compute_log_prob()
        noise = trace.nodes["z_base"]
        assert noise["fn"].event_shape == (3, 2, 2)
        density = dist.Normal(0.0, 1.0).log_prob(noise["value"]).sum(-1)
        kept = mask.expand(4, 3, 2) if inside else torch.tensor([True, True, False, True]).reshape(4, 1, 1)
        same(noise["log_prob"], (density * kept).sum((-2, -1)), 1e-12)
        assert (trace.nodes["z"]["log_prob"] == 0).all()


@every_chart
def test_an_observed_site_is_left_alone(chart):
    point = distribution(chart).sample()

    def model():
        pyro.sample("z", distribution(chart), obs=point)

    trace = poutine.trace(reparametrised(model)).get_trace()
    assert "z_base" not in trace.nodes
    torch.testing.assert_close(trace.log_prob_sum(), distribution(chart).log_prob(point))


@every_form
@every_chart
def test_initial_values_reach_the_other_site(chart, form):
    family, reparam, site = FORMS[form]
    point = chart.from_normal_coords(None, torch.tensor([0.2, 0.4]))
    model = reparametrised(triangulation(chart, "isotropic", family), reparam)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guide = AutoNormal(model, init_loc_fn=init_to_value(values={"z": point}))
        guide()
    start = poutine.condition(model, {site: getattr(guide.locs, site)})
    same(poutine.trace(start).get_trace().nodes["z"]["value"], point, 1e-12)


@every_form
@every_chart
def test_initial_values_of_the_other_site(chart, form):
    # Such as a guide has them: a start that Pyro makes up for the point itself must not win.
    family, reparam, site = FORMS[form]
    start = torch.tensor([0.3, -0.4])
    model = reparametrised(triangulation(chart, "isotropic", family), reparam)
    guide = AutoNormal(model, init_loc_fn=init_to_value(values={site: start}))
    guide()
    same(getattr(guide.locs, site), start, 1e-12)
    params = initialize_model(model, init_strategy=init_to_value(values={site: start}))[0]
    same(params[site], start, 1e-12)


@every_form
@every_chart
def test_a_start_at_the_mean(chart, form):
    family, reparam, _ = FORMS[form]
    model = reparametrised(triangulation(chart, "isotropic", family), reparam)
    guide = AutoNormal(model, init_loc_fn=init_to_mean)
    guide()
    start = poutine.condition(model, guide.median())
    same(poutine.trace(start).get_trace().nodes["z"]["value"], distribution(chart).loc, 1e-9)


@pytest.mark.parametrize(
    ("reparam", "fn", "message"),
    [
        (NoiseReparam, dist.Normal(0.0, 1.0), "Normal, which is no function of white noise"),
        (ManifoldReparam, dist.Normal(0.0, 1.0), "Normal, which has no points of a manifold"),
    ],
)
def test_other_distributions_are_refused(reparam, fn, message):
    model = reparametrised(lambda: pyro.sample("z", fn), reparam)
    with pytest.raises(ValueError, match=f"site 'z' is drawn from {message}"):
        model()


def test_any_distribution_of_points_has_coordinates():
    # One that is not of this package: the image of a Gaussian under another bijection.
    chart = CHARTS[0]
    to_ball = torch.distributions.biject_to(hdist.constraints.on(PoincareBall(chart.c)))
    fn = dist.TransformedDistribution(dist.Normal(torch.zeros(2), 0.5).to_event(1), [to_ball])
    model = reparametrised(lambda: pyro.sample("z", fn), ManifoldReparam)
    trace = poutine.trace(model).get_trace()
    v = trace.nodes["z_coords"]["value"]
    same(trace.log_prob_sum(), dist.Normal(0.0, 0.5).log_prob(v).sum(), 1e-9)


def test_an_observed_point_has_a_density_of_its_coordinates():
    ball = CHARTS[0]
    point = distribution(ball).sample()
    model = reparametrised(lambda: pyro.sample("z", distribution(ball), obs=point), ManifoldReparam)
    same(poutine.trace(model).get_trace().log_prob_sum(), distribution(ball).lebesgue_log_prob(point), 1e-12)


def test_an_observed_point_of_the_hyperboloid_is_refused():
    point = distribution(CHARTS[1]).sample()
    model = reparametrised(lambda: pyro.sample("z", distribution(CHARTS[1]), obs=point), ManifoldReparam)
    with pytest.raises(ValueError, match=r"site 'z' observes a point of Lorentz.* determine it"):
        model()


@every_chart
def test_a_distribution_beyond_the_coordinates_is_refused_as_by_its_sampler(chart):
    def wide(validate):
        return hdist.WrappedNormal(chart.origin(2, torch.float32), 30.0, chart, validate_args=validate)

    message = "WrappedNormal on .*: loc and scale put mass at distance .*float32 coordinates end at"
    draws = [
        lambda: wide(True).rsample(),
        lambda: wide(True).from_noise(torch.zeros(2, dtype=torch.float32)),
        reparametrised(lambda: pyro.sample("z", wide(True))),
        reparametrised(lambda: pyro.sample("z", wide(True)), ManifoldReparam),
    ]
    for draw in draws:
        with pytest.raises(ValueError, match=message):
            draw()
    assert (wide(False).from_noise(torch.zeros(2, dtype=torch.float32)) == wide(False).loc).all()


def test_a_latent_scale_is_decoupled():
    # Given the noise the density of the scale is its prior's, whatever the points.
    def model():
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", 3):
            pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), scale.unsqueeze(-1), CHARTS[0]))

    centred, noncentred = (initialize_model(program)[1] for program in (model, reparametrised(model)))
    logs, noise = torch.tensor([-1.0, 0.5]), torch.randn(3, 2)
    change = [noncentred({"scale": s, "z_base": noise}) for s in logs]
    same(change[1] - change[0], (0.5 * logs.square()).diff().squeeze(), 1e-9)
    change = [centred({"scale": s, "z": noise}) for s in logs]
    assert (change[1] - change[0] - (0.5 * logs.square()).diff()).abs() > 1


@every_chart
def test_any_guide_can_then_follow_a_learned_curvature(chart):
    # Without it the guides of Pyro keep the support of their first run.
    space = ManifoldModule(chart, learnable=True)

    def model():
        pyro.module("space", space)
        loc = space().from_normal_coords(None, torch.tensor([0.5, 1.0]))
        z = pyro.sample("z", hdist.WrappedNormal(loc, 1.0, space()))
        pyro.sample("x", dist.Normal(space().dist0(z), 0.1), obs=torch.tensor(2.0))

    model = reparametrised(model)
    svi = SVI(model, AutoNormal(model), pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(3):
        svi.step()
    assert (space.c - 0.7).abs() > 0.01


@pytest.mark.parametrize("family", [AutoMultivariateNormal, lambda model: AutoIAFNormal(model, hidden_dim=[8])])
@every_chart
def test_neural_transport(chart, family):
    model = triangulation(chart)
    guide = family(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(3):
        svi.step()
    neutra = NeuTraReparam(guide.requires_grad_(False))
    warped = initialize_model(neutra.reparam(model))[1]
    plain = initialize_model(model)[1]
    noise = torch.randn(2)
    transform = guide.get_transform()
    coords = transform(noise)
    expected = plain({"z": coords}) - transform.log_abs_det_jacobian(noise, coords)
    same(warped({"z_shared_latent": noise}), expected, 1e-9)
    mcmc = MCMC(NUTS(neutra.reparam(model), max_tree_depth=2), num_samples=4, warmup_steps=4, disable_progbar=True)
    mcmc.run()
    draws = neutra.transform_sample(mcmc.get_samples()["z_shared_latent"])["z"]
    assert chart.contains(draws).all()
