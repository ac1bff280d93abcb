"""The programs of Pyro's own examples, written anew and smaller: what the trainers are to do as ``SVI`` does.

The models and guides, how they come by their parameters, the losses, the optimisers and the loops are those of
https://github.com/pyro-ppl/pyro/tree/1.9.2/examples (Apache-2.0), as each class says; the networks are narrow and the
images are those that come with this package.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.transforms import affine_autoregressive
from pyro.infer import RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO, config_enumerate
from torch import Tensor, nn
from torch.distributions import constraints
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from pyro_hyperbolic.datasets import mnist

Pair = tuple[Callable[..., Any], Callable[..., Any], Any]
Call = tuple[int, tuple[Any, ...], dict[str, Any]]


class Example(NamedTuple):
    """What an example trains.

    :param pairs: a model, a guide and a loss for each of its trainers.
    :param optim: the optimiser of all of them.
    :param calls: what a pass of its loop calls: which trainer, and the arguments of its ``step``.
    """

    pairs: list[Pair]
    optim: Any
    calls: list[Call]


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    images, labels = mnist(bundled=True)
    return images, labels


def images(count: int = 48) -> tuple[Tensor, Tensor]:
    """Digits of 14 by 14 pixels and their labels, one-hot."""
    all_images, labels = digits()
    every = len(labels) // count
    chosen, labels = all_images[::every][:count], labels[::every][:count]
    small = nn.functional.avg_pool2d(chosen.unsqueeze(1), 2).squeeze(1)
    return small.to(torch.get_default_dtype()), nn.functional.one_hot(labels, 10).to(torch.get_default_dtype())


PIXELS = 14 * 14


class VAE(nn.Module):
    """After examples/vae/vae.py: parts that are registered one by one."""

    def __init__(self, z_dim: int = 5, hidden: int = 12) -> None:
        super().__init__()
        self.z_dim = z_dim
        self.encoder = nn.ModuleDict(
            {"hidden": nn.Linear(PIXELS, hidden), "loc": nn.Linear(hidden, z_dim), "log": nn.Linear(hidden, z_dim)}
        )
        self.decoder = nn.Sequential(nn.Linear(z_dim, hidden), nn.Softplus(), nn.Linear(hidden, PIXELS), nn.Sigmoid())

    def model(self, x: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", x.shape[0]):
            loc, scale = x.new_zeros(x.shape[0], self.z_dim), x.new_ones(x.shape[0], self.z_dim)
            z = pyro.sample("latent", dist.Normal(loc, scale).to_event(1))
            likelihood = dist.Bernoulli(self.decoder(z), validate_args=False).to_event(1)
            pyro.sample("obs", likelihood, obs=x.reshape(-1, PIXELS))

    def guide(self, x: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", x.shape[0]):
            hidden = nn.functional.softplus(self.encoder["hidden"](x.reshape(-1, PIXELS)))
            loc, scale = self.encoder["loc"](hidden), self.encoder["log"](hidden).exp()
            pyro.sample("latent", dist.Normal(loc, scale).to_event(1))


def vae(loss: Callable[[], Any]) -> Example:
    module, (x, _) = VAE(), images()
    return Example(
        [(module.model, module.guide, loss())],
        pyro.optim.Adam({"lr": 1e-3}),
        [(0, (part,), {}) for part in x.split(16)],
    )


class Recogniser(nn.Module):
    """Sees one image: the input with the output where the input is hidden."""

    def __init__(self, z_dim: int, hidden: int, by_index: bool) -> None:
        super().__init__()
        self.by_index = by_index
        self.layers = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.loc, self.log = nn.Linear(hidden, z_dim), nn.Linear(hidden, z_dim)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.by_index:
            both = x.clone()
            both[x == -1] = y[x == -1]
        else:
            both = torch.where(x == -1, y, x)
        hidden = self.layers(both.reshape(-1, PIXELS))
        return self.loc(hidden), self.log(hidden).exp()


class CVAE(nn.Module):
    """After examples/cvae/cvae.py: a plate without a size, and a part that is registered but not trained.

    :param by_index: choose the hidden pixels by indices, as the example does, or by a mask of the same effect: how many
        there are is then not for the values to say.
    """

    def __init__(self, by_index: bool, z_dim: int = 5, hidden: int = 12) -> None:
        super().__init__()
        self.by_index = by_index
        self.baseline = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, PIXELS), nn.Sigmoid())
        self.prior = Recogniser(z_dim, hidden, by_index)
        self.recogniser = Recogniser(z_dim, hidden, by_index)
        self.generator = nn.Sequential(nn.Linear(z_dim, hidden), nn.ReLU(), nn.Linear(hidden, PIXELS), nn.Sigmoid())

    def model(self, xs: Tensor, ys: Tensor) -> None:
        pyro.module("generation_net", self)
        with pyro.plate("data"):
            with torch.no_grad():
                guess = self.baseline(xs.reshape(-1, PIXELS)).reshape(xs.shape)
            loc, scale = self.prior(xs, guess)
            zs = pyro.sample("z", dist.Normal(loc, scale).to_event(1))
            probs, hidden = self.generator(zs), (xs == -1).reshape(-1, PIXELS)
            if self.by_index:
                seen, observed = probs[hidden].reshape(len(xs), -1), ys[xs == -1].reshape(len(xs), -1)
                likelihood = dist.Bernoulli(seen, validate_args=False)
            else:
                observed = ys.reshape(-1, PIXELS)
                likelihood = dist.Bernoulli(probs, validate_args=False).mask(hidden)
            pyro.sample("y", likelihood.to_event(1), obs=observed)

    def guide(self, xs: Tensor, ys: Tensor) -> None:
        with pyro.plate("data"):
            loc, scale = self.recogniser(xs, ys)
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))


def cvae(by_index: bool) -> Example:
    module, (ys, _) = CVAE(by_index), images()
    xs = torch.full_like(ys, -1.0)
    xs[:, 7:, :7] = ys[:, 7:, :7]  # a quadrant is shown
    return Example(
        [(module.model, module.guide, Trace_ELBO())],
        pyro.optim.Adam({"lr": 1e-3}),
        [(0, pair, {}) for pair in zip(xs.split(16), ys.split(16), strict=True)],
    )


class GatedTransition(nn.Module):
    def __init__(self, z_dim: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(z_dim, width), nn.ReLU(), nn.Linear(width, z_dim), nn.Sigmoid())
        self.proposal = nn.Sequential(nn.Linear(z_dim, width), nn.ReLU(), nn.Linear(width, z_dim))
        self.linear, self.raw = nn.Linear(z_dim, z_dim), nn.Linear(z_dim, z_dim)
        self.linear.weight.data, self.linear.bias.data = torch.eye(z_dim), torch.zeros(z_dim)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        gate, proposal = self.gate(z), self.proposal(z)
        loc = (1 - gate) * self.linear(z) + gate * proposal
        return loc, nn.functional.softplus(self.raw(proposal.relu()))


class DMM(nn.Module):
    """After examples/dmm.py: a recurrent guide, masks, a growing weight of the prior, and flows.

    :param packed: the recurrent network reads sequences that are packed by their lengths, as in the example, and the
        lengths are read by Python to turn them round; or padded ones, with the indices that turn them round.
    """

    def __init__(self, packed: bool, num_iafs: int = 0, x_dim: int = 14, z_dim: int = 3, width: int = 8) -> None:
        super().__init__()
        self.packed = packed
        self.emitter = nn.Sequential(
            nn.Linear(z_dim, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, x_dim)
        )
        self.trans = GatedTransition(z_dim, width)
        self.combine = nn.Linear(z_dim, width)
        self.loc, self.raw = nn.Linear(width, z_dim), nn.Linear(width, z_dim)
        self.rnn = nn.RNN(x_dim, width, nonlinearity="relu", batch_first=True)
        self.iafs = nn.ModuleList([affine_autoregressive(z_dim, hidden_dims=[width]) for _ in range(num_iafs)])
        self.z_0, self.z_q_0 = nn.Parameter(torch.zeros(z_dim)), nn.Parameter(torch.zeros(z_dim))
        self.h_0 = nn.Parameter(torch.zeros(1, 1, width))

    def model(self, x: Tensor, backward: Any, mask: Tensor, turn: Any, annealing_factor: Any = 1.0) -> None:
        pyro.module("dmm", self)
        z = self.z_0.expand(len(x), -1)
        with pyro.plate("z_minibatch", len(x)):
            for t in pyro.markov(range(1, x.shape[1] + 1)):
                there = mask[:, t - 1 : t]
                loc, scale = self.trans(z)
                with poutine.scale(scale=annealing_factor):
                    z = pyro.sample(f"z_{t}", dist.Normal(loc, scale).mask(there).to_event(1))
                emission = dist.Bernoulli(logits=self.emitter(z)).mask(there).to_event(1)
                pyro.sample(f"obs_x_{t}", emission, obs=x[:, t - 1])

    def guide(self, x: Tensor, backward: Any, mask: Tensor, turn: Any, annealing_factor: Any = 1.0) -> None:
        pyro.module("dmm", self)
        hidden, _ = self.rnn(backward, self.h_0.expand(1, len(x), -1).contiguous())
        states = self._forward_in_time(hidden, turn)
        z = self.z_q_0.expand(len(x), -1)
        with pyro.plate("z_minibatch", len(x)):
            for t in pyro.markov(range(1, x.shape[1] + 1)):
                both = 0.5 * (self.combine(z).tanh() + states[:, t - 1])
                normal = dist.Normal(self.loc(both), nn.functional.softplus(self.raw(both)))
                there = mask[:, t - 1 : t]
                if len(self.iafs):
                    fn = dist.TransformedDistribution(normal, list(self.iafs)).mask(mask[:, t - 1])
                else:
                    fn = normal.mask(there).to_event(1)
                with poutine.scale(scale=annealing_factor):
                    z = pyro.sample(f"z_{t}", fn)

    def _forward_in_time(self, hidden: Any, turn: Any) -> Tensor:
        if not self.packed:
            return hidden.gather(1, turn.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        padded, _ = pad_packed_sequence(hidden, batch_first=True)
        turned = torch.zeros_like(padded)
        for b, length in enumerate(turn.tolist()):
            turned[b, :length] = padded[b, :length].flip(0)
        return turned


def dmm(packed: bool, loss: Callable[[], Any] = Trace_ELBO, num_iafs: int = 0, annealed: Any = float) -> Example:
    """Sequences of the rows of digits, from the top to the last one that has ink."""
    module, (x, _) = DMM(packed, num_iafs), images(24)
    x = (x[:, ::2] > 0.3).to(x.dtype)  # 7 rows of 14
    calls: list[Call] = []
    for i, part in enumerate(x.split(8)):
        rows = torch.arange(1, 1 + part.shape[1])
        lengths = (part.any(-1) * rows).amax(-1).clamp(min=1)
        lengths, order = lengths.sort(descending=True)
        steps = int(lengths[0])
        part, rows = part[order, :steps], rows[:steps]
        mask = rows <= lengths.unsqueeze(-1)
        turn = torch.where(mask, lengths.unsqueeze(-1) - rows, rows - 1)
        backward: Any = part.gather(1, turn.unsqueeze(-1).expand_as(part))
        if packed:
            backward = pack_padded_sequence(backward, lengths, batch_first=True)
        factor = annealed(0.2 + 0.2 * i)
        calls.append((0, (part, backward, mask, lengths if packed else turn, factor), {}))
    assert not packed or isinstance(calls[0][1][1], PackedSequence)
    adam = {"lr": 3e-4, "betas": (0.96, 0.999), "clip_norm": 10.0, "lrd": 0.99996, "weight_decay": 2.0}
    return Example([(module.model, module.guide, loss())], pyro.optim.ClippedAdam(adam), calls)


def eight_schools(loss: Callable[[], Any]) -> Example:
    """After examples/eight_schools/svi.py: parameters of Pyro's store, whose first values every run draws anew."""
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model(data: Tensor) -> None:
        y, sigma = data[:, 0], data[:, 1]
        mu = pyro.sample("mu", dist.Normal(torch.zeros(1), 10 * torch.ones(1)).to_event(1))
        tau = pyro.sample("tau", dist.HalfCauchy(scale=25 * torch.ones(1)).to_event(1))
        with pyro.plate("schools", len(data)):
            eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
            pyro.sample("obs", dist.Normal(mu + tau * eta, sigma), obs=y)

    def guide(data: Tensor) -> None:
        positive = constraints.positive
        loc_eta = pyro.param("loc_eta", torch.randn(8))
        scale_eta = pyro.param("scale_eta", 0.1 * torch.rand(8), constraint=positive)
        loc_mu = pyro.param("loc_mu", torch.randn(1))
        scale_mu = pyro.param("scale_mu", 0.1 * torch.rand(1), constraint=positive)
        loc_logtau = pyro.param("loc_logtau", torch.randn(1))
        scale_logtau = pyro.param("scale_logtau", 0.1 * torch.rand(1), constraint=positive)
        pyro.sample("mu", dist.Normal(loc_mu, scale_mu).to_event(1))
        tau = dist.TransformedDistribution(dist.Normal(loc_logtau, scale_logtau), dist.transforms.ExpTransform())
        pyro.sample("tau", tau.to_event(1))
        with pyro.plate("schools", len(data)):
            pyro.sample("eta", dist.Normal(loc_eta, scale_eta))

    return Example([(model, guide, loss())], pyro.optim.Adam({"lr": 0.01}), [(0, (torch.stack([y, sigma], 1),), {})])


def lda(batch_size: int | None, as_argument: bool = True) -> Example:
    """After examples/lda.py: enumerated topics of words, and documents that the guide subsamples.

    :param as_argument: sizes come as a namespace among the arguments, as in the example; or are bound before.
    """
    sizes = argparse.Namespace(topics=3, words=20, docs=12, words_per_doc=7)

    def model(data: Any = None, args: Any = sizes, batch_size: int | None = None) -> Tensor:
        with pyro.plate("topics", args.topics):
            weights = pyro.sample("topic_weights", dist.Gamma(1.0 / args.topics, 1.0))
            words = pyro.sample("topic_words", dist.Dirichlet(torch.ones(args.words) / args.words))
        with pyro.plate("documents", args.docs) as ind:
            data = None if data is None else data[:, ind]
            topics = pyro.sample("doc_topics", dist.Dirichlet(weights))
            with pyro.plate("words", args.words_per_doc):
                chosen = pyro.sample("word_topics", dist.Categorical(topics), infer={"enumerate": "parallel"})
                return pyro.sample("doc_words", dist.Categorical(words[chosen]), obs=data)

    def parametrized_guide(predictor: nn.Module, data: Any, args: Any = sizes, batch_size: int | None = None) -> None:
        weights = pyro.param(
            "topic_weights_posterior", lambda: torch.ones(args.topics), constraint=constraints.positive
        )
        words = pyro.param(
            "topic_words_posterior",
            lambda: torch.ones(args.topics, args.words),
            constraint=constraints.greater_than(0.5),
        )
        with pyro.plate("topics", args.topics):
            pyro.sample("topic_weights", dist.Gamma(weights, 1.0))
            pyro.sample("topic_words", dist.Dirichlet(words))
        pyro.module("predictor", predictor)
        with pyro.plate("documents", args.docs, batch_size) as ind:
            data = data[:, ind]
            counts = torch.zeros(args.words, len(ind)).scatter_add(0, data, torch.ones(data.shape))
            pyro.sample("doc_topics", dist.Delta(predictor(counts.T), event_dim=1))

    predictor = nn.Sequential(
        nn.Linear(sizes.words, 8), nn.Sigmoid(), nn.Linear(8, sizes.topics), nn.Sigmoid(), nn.Softmax(-1)
    )
    kwargs: dict[str, Any] = {"args": sizes} if as_argument else {}
    guide = functools.partial(parametrized_guide, predictor)
    return Example(
        [(model, guide, TraceEnum_ELBO(max_plate_nesting=2))],
        pyro.optim.ClippedAdam({"lr": 0.01}),
        [(0, (model(),), kwargs | {"batch_size": batch_size})],
    )


class Concatenated(nn.Module):
    """Layers that read several tensors, broadcast."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, *parts: Tensor) -> Any:
        shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return self.layers(torch.cat([part.expand(*shape, -1) for part in parts], -1))


class SSVAE(nn.Module):
    """After examples/vae/ss_vae_M2.py: labels that are given in some steps and enumerated in others."""

    def __init__(self, z_dim: int = 4, hidden: int = 10, aux_loss_multiplier: float = 46.0) -> None:
        super().__init__()
        self.z_dim, self.aux_loss_multiplier = z_dim, aux_loss_multiplier
        soft = nn.Softplus
        self.encoder_y = nn.Sequential(nn.Linear(PIXELS, hidden), soft(), nn.Linear(hidden, 10), nn.Softmax(-1))
        self.encoder_z = Concatenated(nn.Linear(PIXELS + 10, hidden), soft(), nn.Linear(hidden, 2 * z_dim))
        self.decoder = Concatenated(nn.Linear(z_dim + 10, hidden), soft(), nn.Linear(hidden, PIXELS), nn.Sigmoid())

    def model(self, xs: Tensor, ys: Tensor | None = None) -> None:
        pyro.module("ss_vae", self)
        with pyro.plate("data"):
            loc, scale = xs.new_zeros(len(xs), self.z_dim), xs.new_ones(len(xs), self.z_dim)
            zs = pyro.sample("z", dist.Normal(loc, scale).to_event(1))
            ys = pyro.sample("y", dist.OneHotCategorical(xs.new_ones(len(xs), 10) / 10.0), obs=ys)
            probs = self.decoder(zs, ys)
            pyro.sample("x", dist.Bernoulli(probs, validate_args=False).to_event(1), obs=xs)

    def guide(self, xs: Tensor, ys: Tensor | None = None) -> None:
        with pyro.plate("data"):
            if ys is None:
                ys = pyro.sample("y", dist.OneHotCategorical(self.encoder_y(xs)))
            loc, log = self.encoder_z(xs, ys).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, log.exp()).to_event(1))

    def model_classify(self, xs: Tensor, ys: Tensor | None = None) -> None:
        pyro.module("ss_vae", self)
        with pyro.plate("data"):
            if ys is not None:
                with poutine.scale(scale=self.aux_loss_multiplier):
                    pyro.sample("y_aux", dist.OneHotCategorical(self.encoder_y(xs)), obs=ys)

    def guide_classify(self, xs: Tensor, ys: Tensor | None = None) -> None:
        """Nothing is latent there."""


def ss_vae(auxiliary: bool = True) -> Example:
    """The main loss and, with ``auxiliary``, that of the classifier, by one optimiser; every third batch has labels."""
    module, (x, labels) = SSVAE(), images()
    guide = config_enumerate(module.guide, "parallel", expand=True)
    pairs: list[Pair] = [(module.model, guide, TraceEnum_ELBO(max_plate_nesting=1))]
    if auxiliary:
        pairs.append((module.model_classify, module.guide_classify, Trace_ELBO()))
    calls: list[Call] = []
    for i, (xs, ys) in enumerate(zip(x.flatten(1).split(8), labels.split(8), strict=True)):
        args = (xs, ys) if i % 3 == 1 else (xs,)
        calls += [(which, args, {}) for which in range(len(pairs))]
    return Example(pairs, pyro.optim.Adam({"lr": 4.2e-4, "betas": (0.9, 0.999)}), calls)


def importance_weighted() -> RenyiELBO:
    return RenyiELBO(alpha=0.0, num_particles=4, max_plate_nesting=1, vectorize_particles=True)


EXAMPLES: dict[str, Callable[[], Example]] = {
    "vae": lambda: vae(Trace_ELBO),
    "vae, mean field": lambda: vae(TraceMeanField_ELBO),
    "vae, Renyi": lambda: vae(importance_weighted),
    "cvae": lambda: cvae(by_index=True),
    "cvae, masked": lambda: cvae(by_index=False),
    "dmm": lambda: dmm(packed=True),
    "dmm, padded": lambda: dmm(packed=False, annealed=torch.tensor),
    "dmm, mean field": lambda: dmm(packed=False, loss=TraceMeanField_ELBO, annealed=torch.tensor),
    "dmm, flows": lambda: dmm(packed=False, num_iafs=2, annealed=torch.tensor),
    "eight schools": lambda: eight_schools(Trace_ELBO),
    "eight schools, mean field": lambda: eight_schools(TraceMeanField_ELBO),
    "eight schools, Renyi": lambda: eight_schools(importance_weighted),
    "lda": lambda: lda(batch_size=5),
    "lda, all documents": lambda: lda(batch_size=None, as_argument=False),
    "ss_vae": ss_vae,
    "ss_vae, without the auxiliary loss": lambda: ss_vae(auxiliary=False),
}
