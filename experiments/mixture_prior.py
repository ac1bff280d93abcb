"""A hyperbolic auto-encoder of MNIST whose prior is a mixture, with the components summed out by enumeration.

In :class:`pyro_hyperbolic.models.ManifoldVAE` the prior of the latents is a single normal. Here it is a mixture of
several, with learned centres, scales and weights,

    k ~ Categorical(weights),    z ~ WrappedNormal(centre[k], scale[k]),    x ~ Bernoulli(decoder(z)),

and the guide is the encoder q(z | x). The site ``component`` is discrete and appears only in the model.
``TraceEnum_ELBO`` sums over its values in parallel, and so does the estimate of the marginal likelihood. For
comparison, the example also trains an auto-encoder with the usual prior and the same options. It compares the two by
their bounds on the test set, and by how well the components, found without labels, agree with the digits. For the
single prior, the components are those of a mixture that is fitted to its latents afterwards.

Components that start in one place would all learn the same. So they start at draws of the usual prior, with equal
weights. The record says how many of them the digits use.

What to look for: ``latent.png`` shows the latent spaces with a circle around half of each component. The thicker the
line, the greater the weight. With the mixture, classes that stand apart, such as zeros, ones and sevens, have
components of their own, and classes that look alike share some. ``components.png`` has a row of draws for each
component, sorted by weight. The clearer the digits of a row, the more the component belongs to one class.

Every epoch ends with a checkpoint. If a run is interrupted, continue it with ``--resume``. It ends bit for bit where an
uninterrupted run would have.

    python -m experiments.mixture_prior
    python -m experiments.mixture_prior --components 20 --space p5 --num-epochs 40
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from torch import Tensor, nn
from tqdm.auto import tqdm

from examples.command import add_common, command, make_parser, natural, positive
from examples.runs import load_run, record, save_json, save_run
from pyro_hyperbolic import Lorentz, PoincareBall, datasets, geometry
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.infer import FastSVI, Minibatches, log_marginal_likelihood
from pyro_hyperbolic.models import ManifoldLatent, ManifoldVAE
from pyro_hyperbolic.nn import ManifoldModule, exp0

LOSSES = {"single": Trace_ELBO(), "mixture": TraceEnum_ELBO(max_plate_nesting=1)}
MODELS = tuple(LOSSES)
# What may change between the parts of one run; everything else decides the result.
FREE_OPTIONS = ("num_epochs", "fit_steps", "iwae_samples", "iwae_images")
SCALE = 0.5  # of a component at the start
SHOWN = 4000  # test images in the picture of the latent space
PER_COMPONENT = 12  # generated digits


class MixtureLatent(ManifoldLatent):
    """A latent space whose prior is a mixture of wrapped normals; centres are stored as ``exp_0`` takes them.

    :param components: how many.
    """

    def __init__(self, manifold: ManifoldModule, dim: int, components: int) -> None:
        super().__init__(manifold, dim, posterior_scale="isotropic")
        # exp_0 of half a standard normal is a draw of the wrapped normal at the origin with scale 1.
        self.centres = nn.Parameter(torch.randn(components, dim) / 2)
        self.log_scales = nn.Parameter(torch.full((components, 1), math.log(SCALE)))
        self.logits = nn.Parameter(torch.zeros(components))

    def assignment(self) -> Any:
        """The distribution of the component."""
        return dist.Categorical(logits=self.logits)

    def component(self, k: Tensor | slice = slice(None)) -> WrappedNormal:
        """The distribution of a latent given its component; of each component by default."""
        manifold = self.manifold()
        return WrappedNormal(exp0(manifold, self.centres)[k], self.log_scales.exp()[k], manifold)

    def prior(self) -> Any:
        """The distribution of a latent whatever its component."""
        return dist.MixtureSameFamily(self.assignment(), self.component())

    def responsibilities(self, z: Tensor) -> Tensor:
        """Probabilities of the components given latents ``(N, D)``, as ``(N, K)``."""
        return (self.component().log_prob(z.unsqueeze(-2)) + self.assignment().logits).softmax(-1)


class MixtureVAE(ManifoldVAE):
    """The auto-encoder with that prior; the other programs and networks are those of its base class."""

    latent: MixtureLatent

    def __init__(self, manifold: Manifold, latent_dim: int, components: int, hidden_dim: int) -> None:
        super().__init__(manifold, latent_dim, (28, 28), hidden_dim)
        self.latent = MixtureLatent(self.latent.manifold, latent_dim, components)

    def sample_latent(self) -> Tensor:
        k = pyro.sample("component", self.latent.assignment(), infer={"enumerate": "parallel"})
        return pyro.sample("z", self.latent.component(k))


def build_model(name: str, args: argparse.Namespace) -> ManifoldVAE:
    """One of the two auto-encoders; ``.model`` and ``.guide`` are its Pyro programs."""
    space = geometry.from_signature(args.space, c=args.curvature, k=-args.curvature)
    dim = geometry.signature_dim(args.space)
    if name == "mixture":
        return MixtureVAE(space, dim, args.components, args.hidden_dim)
    return ManifoldVAE(space, dim, (28, 28), args.hidden_dim)


def train(name: str, images: Tensor, test: Tensor, args: argparse.Namespace) -> tuple[ManifoldVAE, dict[str, Any]]:
    """Fit one model, from its checkpoint if there is one; its losses per image, epoch by epoch."""
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    vae = build_model(name, args)
    vae.init_output_bias(images)
    svi = FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": args.learning_rate}), LOSSES[name])
    path = args.output_dir / f"{name}.pt"
    history: dict[str, Any] = {"train_loss": [], "test_loss": [], "seconds": []}
    state = load_run(path, args, FREE_OPTIONS, training_images=len(images))
    if state is not None:
        vae.load_state_dict(state["model"])
        svi.load_state_dict(state["trainer"])
        history = state["history"]
    batches = Minibatches(images, args.batch_size, args.seed)
    for epoch in range(len(history["train_loss"]) + 1, args.num_epochs + 1):
        start = time.perf_counter()
        title = f"{name}, epoch {epoch}/{args.num_epochs}"
        losses = [svi.step(x) for x in tqdm(batches.epoch(epoch), title, len(batches), leave=False, disable=None)]
        history["train_loss"].append(torch.stack(losses).sum().item() / len(images))
        with torch.no_grad():
            losses = [svi.evaluate_loss(x) for x in test.split(1000)]
        history["test_loss"].append(sum(map(float, losses)) / len(test))
        history["seconds"].append(time.perf_counter() - start)
        state = {"model": vae.state_dict(), "trainer": svi.state_dict(), "history": history}
        save_run(state, path, args, training_images=len(images))
        bounds = ", ".join(f"{key.replace('_', ' ')} {history[key][-1]:.2f}" for key in ("train_loss", "test_loss"))
        print(f"{title}: {bounds}", flush=True)
    return vae, history


def fit_mixture(vae: ManifoldVAE, z: Tensor, args: argparse.Namespace) -> MixtureLatent:
    """The mixture of greatest likelihood for latents that were learned without one."""
    pyro.set_rng_seed(args.seed)
    latent = MixtureLatent(vae.latent.manifold, vae.latent.dim, args.components)
    optimiser = torch.optim.Adam(latent.parameters(), lr=0.02)
    for _ in range(args.fit_steps):
        optimiser.zero_grad()
        (-latent.prior().log_prob(z).mean()).backward()
        optimiser.step()
    return latent


def clustering(components: Tensor, labels: Tensor, count: int) -> dict[str, float]:
    """Purity and normalised mutual information of two labellings, and how many components are in use.

    Purity is the share of images that have the commonest label of their component. The mutual information is
    divided by the mean of the entropies.
    """
    table = torch.zeros(count, 10, dtype=torch.float64)
    table.index_put_((components, labels), torch.ones(len(labels), dtype=torch.float64), accumulate=True)
    joint = table / table.sum()

    def entropy(p: Tensor) -> Tensor:
        return torch.special.entr(p).sum()

    first, second = entropy(joint.sum(1)), entropy(joint.sum(0))
    information = first + second - entropy(joint)
    return {
        "purity": joint.amax(1).sum().item(),
        "nmi": (2 * information / (first + second)).item(),
        "components_in_use": int((joint.sum(1) >= 0.01).sum()),
    }


def evaluate(vae: ManifoldVAE, latent: MixtureLatent, test: datasets.Digits, args: argparse.Namespace) -> dict:
    """Clusters of the test images, and an estimate of their marginal likelihood."""
    with torch.no_grad():
        components = latent.responsibilities(vae.encode(test.images).mean).argmax(-1)
    result: dict[str, Any] = clustering(components, test.labels, args.components)
    if args.iwae_samples:
        images = test.images[: args.iwae_images]
        estimates, errors = log_marginal_likelihood(
            vae.model, vae.guide, images, num_samples=args.iwae_samples, standard_error=True, progress=True
        )
        result["negative_iwae"] = -estimates.mean().item()
        result["negative_iwae_error"] = errors.square().mean().sqrt().item() / len(errors) ** 0.5
    return result


def draw(
    models: dict[str, ManifoldVAE], latents: dict[str, MixtureLatent], test: datasets.Digits, folder: Path
) -> None:
    """The latent spaces with the components, and digits that each component of the mixture generates."""
    import matplotlib.pyplot as plt

    from pyro_hyperbolic import plotting

    space = models["mixture"].manifold
    if latents["mixture"].dim == 2 and isinstance(space, (PoincareBall, Lorentz)):
        ball = PoincareBall(space.c)
        figure, axes = plt.subplots(1, 2, figsize=(11, 5.4), layout="constrained")
        angles = torch.linspace(0, 2 * math.pi, 200)
        circle = torch.stack([angles.cos(), angles.sin()], -1).unsqueeze(1)
        for ax, name in zip(axes, MODELS, strict=True):
            with torch.no_grad():
                z = models[name].encode(test.images[:SHOWN]).mean
                components, weights = latents[name].component(), latents[name].assignment().probs
                # A disc that holds half of a component: the median of Rayleigh's distribution is sqrt(2 log 2).
                radius = math.sqrt(2 * math.log(2)) * components.scale
                rings = space.from_normal_coords(components.loc, radius * circle)
            if isinstance(space, Lorentz):
                z, rings = space.to_poincare(z), space.to_poincare(rings)
            plotting.embedding(z, ball, labels=test.labels[:SHOWN], ax=ax, s=3, alpha=0.7, legend=name == MODELS[-1])
            for k, weight in enumerate(weights.tolist()):
                ax.plot(*rings[:, k].T.numpy(), color="0.1", linewidth=0.5 + 6 * weight, alpha=0.8, zorder=4)
            fitted = " (components fitted afterwards)" if name == "single" else ""
            ax.set_title(f"{name} prior{fitted}", fontsize="medium")
        plotting.save(figure, folder / "latent.png")

    vae, latent = models["mixture"], latents["mixture"]
    order = latent.logits.argsort(descending=True)
    with torch.no_grad():
        digits = vae.decode(latent.component(order).sample((PER_COMPONENT,)).transpose(0, 1).flatten(0, 1)).mean
    figure, ax = plt.subplots(figsize=(6, 0.5 * len(order) + 0.4), layout="constrained")
    plotting.images(digits, columns=PER_COMPONENT, ax=ax)
    ax.set_title("samples of the components, by weight", fontsize="medium")
    plotting.save(figure, folder / "components.png")
    plt.close("all")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if all(factor.startswith("e") for factor in args.space.split(",")):
        raise ValueError(f"--space must have a curved factor, got {args.space}; take for example p2.")
    images, test = datasets.mnist(args.data_dir).images, datasets.mnist(args.data_dir, train=False)
    print(f"{len(images)} training and {len(test.images)} test digits; results in {args.output_dir}", flush=True)

    args.output_dir.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = record(args)
    result |= {"data": test.source, "train_size": len(images), "test_size": len(test.images), "models": {}}
    models: dict[str, ManifoldVAE] = {}
    latents: dict[str, MixtureLatent] = {}
    for name in MODELS:
        vae, history = train(name, images, test.images, args)
        if isinstance(vae, MixtureVAE):
            latents[name] = vae.latent
        else:
            with torch.no_grad():
                z = vae.encode(images[:5000]).mean
            latents[name] = fit_mixture(vae, z, args)
        models[name] = vae
        entry = {"history": history, "weights": latents[name].assignment().probs.tolist()}
        result["models"][name] = entry | evaluate(vae, latents[name], test, args)
        save_json(result, args.output_dir / "metrics.json")
    report(result)
    draw(models, latents, test, args.output_dir)
    return result


def report(result: dict[str, Any]) -> None:
    print(f"{'prior':10}{'-ELBO':>10}{'-IWAE':>10}{'purity':>10}{'NMI':>10}{'in use':>10}")
    for name, entry in result["models"].items():
        iwae = f"{entry['negative_iwae']:.2f}" if "negative_iwae" in entry else "-"
        cells = f"{entry['history']['test_loss'][-1]:10.2f}{iwae:>10}{entry['purity']:10.3f}{entry['nmi']:10.3f}"
        print(f"{name:10}{cells}{entry['components_in_use']:10}")


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "experiments.mixture_prior")
    p.add_argument("--components", type=positive(int), default=10, help="components of the mixture")
    add_common(p, "--space")
    p.add_argument("--curvature", type=positive(float), default=1.4, help="c; the curvature is -c")
    p.add_argument("--hidden-dim", type=positive(int), default=200, help="width of the hidden layers")
    p.add_argument("--num-epochs", type=positive(int), default=20, help="passes over the training data")
    p.add_argument("--batch-size", type=positive(int), default=256, help="images per step")
    p.add_argument("--learning-rate", type=positive(float), default=2e-3, help="learning rate of Adam")
    p.add_argument("--fit-steps", type=natural, default=500, help="steps of the mixture fit for the single prior")
    p.add_argument("--iwae-samples", type=natural, default=200, help="samples of the final estimate; 0 for none")
    p.add_argument("--iwae-images", type=positive(int), default=2000, help="test images in the final estimate")
    add_common(p, "--seed", "--threads", "--data-dir", "--output-dir", "--resume")
    return p


main = command(parser, run, checkpoint=f"{MODELS[0]}.pt")

if __name__ == "__main__":
    main()
