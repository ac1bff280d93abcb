"""Many members trained in one step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import pyro
import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor
from torch.func import grad_and_value, vmap

from pyro_hyperbolic.accelerate.bounds.marginal import (
    Compiled,
    Kept,
    check_arguments,
    iwae_estimates,
    kept_for,
    log_weights,
)
from pyro_hyperbolic.accelerate.bounds.tensor_elbo import TensorLoss, tensor_loss
from pyro_hyperbolic.accelerate.programs.arguments import (
    as_arguments,
    check_members,
    narrowed,
    of_member,
    signature,
    split_tensors,
    step_on,
)
from pyro_hyperbolic.accelerate.programs.compiled import checked_compile, compile_function, explained
from pyro_hyperbolic.accelerate.programs.functional import Found, Parameters, Program, device_of, unregistered
from pyro_hyperbolic.accelerate.programs.isolation import isolated
from pyro_hyperbolic.accelerate.programs.modes import OutOfPlaceRandom
from pyro_hyperbolic.accelerate.programs.warning import warn_user
from pyro_hyperbolic.accelerate.trainers.graphs import CapturedSteps
from pyro_hyperbolic.accelerate.trainers.members import check_structure, checked_members, warn_of_attributes
from pyro_hyperbolic.accelerate.trainers.minibatch import Epoch
from pyro_hyperbolic.accelerate.trainers.optimiser import Factory, OneOptimiser, checked_rates
from pyro_hyperbolic.accelerate.trainers.run import run_steps
from pyro_hyperbolic.accelerate.trainers.state import check_fits, check_state
from pyro_hyperbolic.accelerate.trainers.transfer import Transfer
from pyro_hyperbolic.accelerate.trainers.validation import Deferred, checked_interval, interval
from pyro_hyperbolic.accelerate.trainers.watch import NaNWatch

_EQUAL = 1e-3  # relative difference of a member's loss in the ensemble and alone, given the same noise


class EnsembleSVI:
    r"""Trains ``E`` pairs of programs of the same structure in one step.

    The members' parameters are stacked, and each member's own become views of the stack: every member stays an ordinary
    module that is always current, and can be used, saved and evaluated by itself. So do the buffers in which members
    differ or that the programs change (statistics of batches); the others are read from the first member. Members may
    differ in the values of their parameters and buffers (seeds, curvatures, prior scales), not in Python attributes:
    the first step compares each member's loss in the ensemble with its loss alone and names a member that differs.
    Gradients, clipping and the optimiser act on each member apart, so that one that diverges does not disturb the
    others. Parameters without ``requires_grad`` and those that have no gradient are left alone, as by ``SVI``. The
    state is that of :meth:`state_dict`; ``optim.get_state()``, which knows no members, refuses to give it.

    :param members: pairs ``(model, guide)`` of modules, or of methods of modules.
    :param optim: as for :class:`FastSVI`.
    :param loss: as for :class:`FastSVI`.
    :param learning_rates: a learning rate per member, a list or ``(E,)``, to start from; by default that of ``optim``
        for all. For optimisers whose step is proportional to it, with one learning rate for all parameters.
    :param capture: capture the step in a CUDA graph; by default on a CUDA device.
    :param compile: compile the loss and the gradient of all members together; ``"tuned"`` as for :class:`FastSVI`.
    :param randomness: ``"different"`` noise for each member, or the ``"same"`` for all.
    :param validate_every: how many steps lie between two validated evaluations, each of one member in turn; by default
        as for :class:`FastSVI`.

    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.models import HyperbolicVAE
    >>> vaes = [HyperbolicVAE(PoincareBall(c), 2, 5, hidden_dim=8, likelihood="normal") for c in (0.1, 1.0)]
    >>> svi = EnsembleSVI([(v.model, v.guide) for v in vaes], pyro.optim.Adam({"lr": 1e-3}), pyro.infer.Trace_ELBO())
    >>> svi.step(torch.randn(10, 5), shared=True).shape
    torch.Size([2])
    """

    def __init__(
        self,
        members: Sequence[tuple[Program, Program]],
        optim: PyroOptim | Factory,
        loss: ELBO | TensorLoss,
        *,
        learning_rates: Tensor | Sequence[float] | None = None,
        capture: bool | None = None,
        compile: bool | Literal["tuned"] = False,
        randomness: str = "different",
        validate_every: int | None = None,
    ) -> None:
        if randomness not in ("different", "same"):
            raise ValueError(f"randomness must be 'different' or 'same', got {randomness!r}.")
        self.members = checked_members(members)
        self.optim = optim
        self.loss = tensor_loss(loss)
        self.learning_rates = checked_rates(learning_rates, len(self.members))
        self.capture, self.compile, self.randomness = capture, checked_compile(compile), randomness
        self.validate_every = checked_interval(validate_every)
        self.steps = 0
        self.parameters: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self._template: Parameters | None = None
        self._optimiser: OneOptimiser | None = None
        self._pending: dict[str, Any] | None = None
        self._ratio: Tensor | None = None
        self._invalid: set[int] = set()
        self._functions: dict[Any, tuple[Callable[..., Any], set[str], set[str]]] = {}
        self._weights: Kept = OrderedDict()
        self._graded: set[str] = set()
        self._changed: set[str] = set()
        self._begun: set[Any] = set()
        self._deferred = Deferred()
        self._captured = CapturedSteps(self._graph_parts)

    def __len__(self) -> int:
        return len(self.members)

    def step(self, *args: Any, shared: bool = False, **kwargs: Any) -> Tensor:
        """One gradient step of every member; the losses ``(E,)``.

        :param args: tensors with a leading dimension over members, or, with ``shared``, the same for all.
        """
        if self._optimiser is None:
            self._set_up(args, kwargs, shared)
        else:
            self._check_views()
            self._validate(1, args, kwargs, shared)
        self._take_over_changes()
        assert self._optimiser is not None
        key = self._key(args, kwargs, shared)
        # The first step of a kind is not captured: it makes the state of the optimiser, which a capture must find.
        if self._optimiser.captured and key in self._begun:
            losses = self._captured.replay(key, self._step, args, kwargs | {"shared": shared})
        else:
            losses = self._step(*args, shared=shared, **kwargs)
            self._begun.add(self._key(args, kwargs, shared))
        self.steps += 1
        self._watch.see(losses.unsqueeze(0), self.steps)
        return losses

    def run(self, batches: Iterable[Any], *, shared: bool = False, progress: bool = False) -> Tensor:
        """A step for each of the batches; the losses ``(steps, E)``. See :meth:`FastSVI.run`.

        :param batches: arguments of :meth:`step`: a tuple holds several, a dictionary keywords.
        :param progress: show a progress bar.
        """

        def block(epoch: Epoch, rows: Tensor) -> Tensor | None:
            return self._block(epoch, rows, shared)

        transfer = Transfer(self._place)
        losses = run_steps(batches, lambda batch: step_on(self.step, batch, shared=shared), block, transfer, progress)
        self._deferred.make()
        return torch.cat(losses) if losses else torch.empty(0, len(self))

    def _block(self, epoch: Epoch, rows: Tensor, shared: bool) -> Tensor | None:
        """The steps with some batches, given by their rows, in one graph; ``None`` before a step of the kind."""
        if self._optimiser is None or not self._optimiser.captured:
            return None
        self._check_views()
        args, kwargs = as_arguments(epoch.source.take(rows[0]))
        self._take_over_changes()
        key = self._key(args, kwargs, shared)
        if key not in self._begun:
            return None
        if self.buffers:
            self._validate(len(rows), args, kwargs, shared)  # it sets them back, so no step must be under way
        elif (member := self._due(len(rows))) is not None:
            self._deferred.put_off(lambda: self._evaluate_validated(member, args, kwargs, shared), rows.device)

        def steps(rows: Tensor) -> Tensor:
            return torch.stack([step_on(self._step, epoch.source.take(index), shared=shared) for index in rows])

        losses = self._captured.replay((epoch.source, len(rows), key), steps, (rows,), {}, warm_up=1)
        self.steps += len(rows)
        self._watch.see(losses, self.steps)
        return losses

    def evaluate_loss(self, *args: Any, shared: bool = False, **kwargs: Any) -> Tensor:
        """The losses ``(E,)`` without a step."""
        if self._optimiser is None:
            self._set_up(args, kwargs, shared)
        losses, buffers = self._evaluate(args, kwargs, shared, self.randomness)
        self._load_buffers(buffers)
        return losses

    @torch.no_grad()
    def log_marginal_likelihood(
        self,
        *args: Any,
        shared: bool = True,
        num_samples: int = 5000,
        chunk: int | None = None,
        standard_error: bool = False,
        progress: bool = False,
        compile: bool = False,
        **kwargs: Any,
    ) -> Any:
        """IWAE estimates ``(E, N)``; see :func:`log_marginal_likelihood`.

        :param args: tensors ``(N, ...)`` for all members, or, without ``shared``, ``(E, N, ...)``; like ``kwargs``.
        :param chunk: how many triples of a member, a datum and a sample are held at a time; by default as there.
        """
        if self._optimiser is None:
            raise ValueError(
                "members can be evaluated together after the first step; call step first, or evaluate each by itself."
            )
        check_arguments(args)
        template, (model, guide) = self._parts()
        inputs, rebuild = split_tensors(args, kwargs)
        if not shared:
            check_members(inputs, len(self), data=True)

        def weights(batch: list[Tensor], count: int) -> Tensor:
            def one(values: dict[str, Tensor], buffers: dict[str, Tensor], own: list[Tensor]) -> Tensor:
                own_args, own_kwargs = rebuild(own)
                return template.run(lambda: log_weights(model, guide, own_args, own_kwargs, count), values, buffers)[0]

            function = vmap(one, in_dims=(0, 0, None if shared else 1), randomness="different")
            with pyro.validation_enabled(False):
                return function(self._detached(), self.buffers, batch).transpose(0, 1)

        # The first dimension is the one that is cut into chunks.
        rows = inputs if shared else [t.transpose(0, 1) for t in inputs]
        tensors = [*self.parameters.values(), *self.buffers.values()]

        def kept(batch: list[Tensor]) -> Compiled:
            own_args, own_kwargs = rebuild(batch)
            return kept_for(self._weights, self._key(*narrowed(own_args, own_kwargs, 0, 1), shared), tensors)

        return iwae_estimates(
            weights, rows, num_samples, chunk, standard_error, progress, kept if compile else None, len(self)
        )

    def state_dict(self) -> dict[str, Any]:
        """Parameters of all members, the buffers in which they differ, optimiser, schedule and step."""
        if self._pending is not None:
            return self._pending
        if self._optimiser is None:
            raise ValueError("there is no state before the first step; call step or run first.")
        self._watch.flush()
        tensors = {name: t.detach().clone() for name, t in self.parameters.items()}
        buffers = {name: t.detach().clone() for name, t in self.buffers.items()}
        optimiser = self._optimiser.state_dict()
        return {"parameters": tensors, "buffers": buffers, "optimiser": optimiser, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; before the first step it is applied as soon as the parameters are known."""
        check_state(state)
        if self._optimiser is None:
            self._pending = state
        else:
            self._apply(state, self._optimiser)

    def _parts(self) -> tuple[Parameters, tuple[Program, Program]]:
        assert self._template is not None
        return self._template, self.members[0]

    def _place(self) -> torch.device | None:
        """Where captured steps are, as far as that is known."""
        if self.capture is False:
            return None
        return device_of(*self.members[0]) if self._template is None else self._template.device

    def _detached(self) -> dict[str, Tensor]:
        return {name: t.detach() for name, t in self.parameters.items()}

    def _load_buffers(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                self.buffers[name].copy_(value)

    def _take_over_changes(self) -> None:
        """What has happened to the optimiser since the last step."""
        assert self._optimiser is not None
        if self._optimiser.optim is not self.optim:
            self._optimiser = self._make_optimiser()
            self._forget_graphs()
        elif self._optimiser.sync():
            self._forget_graphs()

    def _forget_graphs(self) -> None:
        """A captured graph writes to the state it was captured with; another one has to be made first."""
        self._captured.clear()
        self._begun.clear()

    def _set_up(self, args: tuple[Any, ...], kwargs: dict[str, Any], shared: bool) -> None:
        found = []
        # One after the other, so that parameters that are drawn when the programs first run differ between members.
        with isolated():
            for i, (model, guide) in enumerate(self.members):
                own_args, own_kwargs = self._of_member(args, kwargs, i, shared)
                with pyro.get_param_store().scope(), Found(model, guide, undo=True) as result:
                    self.loss(model, guide, *own_args, **own_kwargs)
                found.append(result.parameters)
                self._changed |= result.changed(found[-1])
        check_structure(found)
        self._template = found[0]
        for name in found[0].tensors:
            stack = torch.stack([other.tensors[name].detach() for other in found])
            self.parameters[name] = stack.requires_grad_()
            for i, other in enumerate(found):
                other.tensors[name].data = stack.data[i]
        own_buffers = [other.buffers for other in found]
        for name, first in own_buffers[0].items():
            if name in self._changed or any(not torch.equal(first, buffers[name]) for buffers in own_buffers):
                stack = torch.stack([buffers[name] for buffers in own_buffers])
                self.buffers[name] = stack
                for i, buffers in enumerate(own_buffers):
                    buffers[name].data = stack[i]
        warn_of_attributes(found)
        # A step that is refused leaves no optimiser behind, so that the next one is checked again.
        self._check_members(args, kwargs, shared)
        optimiser = self._make_optimiser()
        self._watch = NaNWatch()
        if self._pending is not None:
            self._apply(self._pending, optimiser)
            self._pending = None
        self._optimiser = optimiser

    def _make_optimiser(self) -> OneOptimiser:
        names = self._parts()[0].names
        optimiser = OneOptimiser(self.optim, self.parameters, names, self.capture, stacked=True)
        if self.learning_rates is not None:
            rates = optimiser.start_rates
            if len(rates) > 1 or 0.0 in rates:
                raise ValueError("learning_rates need an optim with one positive learning rate for all parameters.")
            device = next(iter(self.parameters.values())).device
            self._ratio = self.learning_rates.to(device) / rates.pop()
        return optimiser

    def _check_views(self) -> None:
        """Refuse to train a stack that the members have left."""
        for name, tensor in self._parts()[0].tensors.items():
            if tensor.data_ptr() != self.parameters[name].data_ptr():
                raise ValueError(
                    f"the parameter {name!r} of member 0 is no longer a part of the ensemble: another EnsembleSVI has"
                    " taken the members, or they were moved to another device or dtype. Make one EnsembleSVI of them,"
                    " with the sum of the losses (loss may be a function), after they were moved."
                )

    def _validate(self, count: int, args: tuple[Any, ...], kwargs: dict[str, Any], shared: bool) -> None:
        """Where it is due in one of the next steps, evaluate a member by itself, with Pyro's validation, aside."""
        member = self._due(count)
        if member is not None:
            self._evaluate_validated(member, args, kwargs, shared)

    def _due(self, count: int) -> int | None:
        """The member to be evaluated in one of the next steps, if any; they have their turns."""
        assert self._optimiser is not None
        every = interval(self.validate_every, self._optimiser.captured)
        due = -(-self.steps // every)
        i = due % len(self)
        return None if due * every >= self.steps + count or i in self._invalid else i

    def _evaluate_validated(self, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], shared: bool) -> None:
        """A member that fails must not stop the others: it is reported once, and not looked at again."""
        own_args, own_kwargs = self._of_member(args, kwargs, i, shared)
        model, guide = self.members[i]
        try:
            with isolated(), pyro.get_param_store().scope(), Found(model, guide, undo=True):
                self.loss(model, guide, *own_args, **own_kwargs)
        except ValueError as error:
            self._invalid.add(i)
            warn_user(f"member {i}, step {self.steps}: {error}")

    def _check_members(self, args: tuple[Any, ...], kwargs: dict[str, Any], shared: bool) -> None:
        with isolated():
            seed = torch.initial_seed()
            torch.manual_seed(seed)
            together, _ = self._evaluate(args, kwargs, shared, "same")
            for i, (model, guide) in enumerate(self.members):
                own_args, own_kwargs = self._of_member(args, kwargs, i, shared)
                torch.manual_seed(seed)
                with pyro.get_param_store().scope(), OutOfPlaceRandom(), Found(model, guide, undo=True):
                    alone = self.loss(model, guide, *own_args, **own_kwargs)
                if not torch.allclose(together[i].double(), alone.double(), _EQUAL, _EQUAL, equal_nan=True):
                    here = unregistered(self._parts()[0])
                    raise ValueError(
                        f"member {i} has loss {alone.item():.6g} alone but {together[i].item():.6g} in the ensemble: it"
                        " differs from member 0 in something that is neither a parameter nor a buffer; make it one."
                        + (f" Here {here}." if here else "")
                    )

    def _of_member(self, args: tuple[Any, ...], kwargs: dict[str, Any], i: int, shared: bool) -> Any:
        return (args, kwargs) if shared else of_member(args, kwargs, i, len(self))

    def _apply(self, state: dict[str, Any], optimiser: OneOptimiser) -> None:
        check_fits(state, self.parameters, self.buffers, "an ensemble of other members")
        optimiser.load_state_dict(state["optimiser"])
        with torch.no_grad():
            for own, given in ((self.parameters, state["parameters"]), (self.buffers, state["buffers"])):
                for name, tensor in own.items():
                    tensor.copy_(given[name])
        self.steps = state["steps"]
        self._watch = NaNWatch()
        self._invalid.clear()
        self._graded = {name for name, t in self.parameters.items() if optimiser.torch.state.get(t)}
        self._forget_graphs()

    def _member_loss(self, rebuild: Callable[..., Any], used: set[str]) -> Callable[..., Any]:
        """The loss of one member as a function of what is trained of it and the rest, with its new buffers."""
        template, (model, guide) = self._parts()

        def loss(trained: dict[str, Tensor], fixed: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Any) -> Any:
            args, kwargs = rebuild(inputs)
            result, run = template.run(
                lambda: self.loss(model, guide, *args, **kwargs), trained | fixed, buffers, self._changed
            )
            used.update(run.used)
            return result, run.buffers

        return loss

    def _values(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parameters that are trained, and those that are not."""
        tensors, values = self._parts()[0].tensors, self._detached()
        trained = {name: value for name, value in values.items() if tensors[name].requires_grad}
        return trained, {name: value for name, value in values.items() if name not in trained}

    @torch.no_grad()
    def _evaluate(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], shared: bool, randomness: str
    ) -> tuple[Tensor, dict[str, Tensor]]:
        inputs, rebuild = split_tensors(args, kwargs)
        if not shared:
            check_members(inputs, len(self))
        function = vmap(
            self._member_loss(rebuild, set()), in_dims=(0, 0, 0, None if shared else 0), randomness=randomness
        )
        with pyro.validation_enabled(False), explained("run as one ensemble", "train the members by FastSVI"):
            return function(*self._values(), self.buffers, inputs)

    def _step(self, *args: Any, shared: bool, **kwargs: Any) -> Tensor:
        assert self._optimiser is not None
        inputs, values = split_tensors(args, kwargs)[0], self._values()
        function, used, graded = self._function(args, kwargs, shared)
        with pyro.validation_enabled(False):
            gradients, (losses, buffers) = function(*values, self.buffers, inputs)
        self._load_buffers(buffers)
        self._graded |= graded
        for name, tensor in self.parameters.items():
            # As FastSVI does; here what has no gradient comes as zeros.
            stepped = name in graded or (name in used and name in self._graded)
            tensor.grad = gradients[name].contiguous() if stepped else None
        before = None if self._ratio is None else [t.detach().clone() for t in self.parameters.values()]
        self._optimiser.step()
        if before is not None:
            self._rescale(before)
        return losses

    def _function(self, args: tuple[Any, ...], kwargs: dict[str, Any], shared: bool) -> Any:
        """Losses and gradients of all members as a function; the parameters it uses, and those with a gradient."""
        key = self._key(args, kwargs, shared)
        if key in self._functions:
            return self._functions[key]
        inputs, rebuild = split_tensors(args, kwargs)
        if not shared:
            check_members(inputs, len(self))
        used: set[str] = set()
        function = vmap(
            grad_and_value(self._member_loss(rebuild, used), has_aux=True),
            in_dims=(0, 0, 0, None if shared else 0),
            randomness=self.randomness,
        )

        def make() -> Any:
            graded = self._with_gradient(args, kwargs, shared)
            if not self.compile:
                return function, used, graded
            with explained("compiled", "use compile=False"):
                tune = self.compile == "tuned"
                return compile_function(function, *self._values(), self.buffers, inputs, tune=tune), used, graded

        made = self._parts()[0].surroundings.ignore_written(make)
        key = self._key(args, kwargs, shared)
        self._functions[key] = made
        self._parts()[0].surroundings.warn_of_many(self._functions, key[0])
        return made

    def _with_gradient(self, args: tuple[Any, ...], kwargs: dict[str, Any], shared: bool) -> set[str]:
        """The parameters that have a gradient: of the first member, by a run aside."""
        template, (model, guide) = self._parts()
        args, kwargs = self._of_member(args, kwargs, 0, shared)
        trained = [name for name, t in template.tensors.items() if t.requires_grad]
        tensors = [template.tensors[name] for name in trained]
        run = Found(model, guide, undo=True)
        with isolated(), torch.enable_grad(), pyro.validation_enabled(False), pyro.get_param_store().scope(), run:
            loss = self.loss(model, guide, *args, **kwargs)
            if not loss.requires_grad:
                return set()
            gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
        return {name for name, gradient in zip(trained, gradients, strict=True) if gradient is not None}

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any], shared: bool) -> Any:
        return (shared, signature(args, kwargs)), self._parts()[0].surroundings.key()

    @torch.no_grad()
    def _rescale(self, before: list[Tensor]) -> None:
        """Scale every member's step to its own learning rate; a schedule acts on all of them."""
        assert self._ratio is not None
        for old, tensor in zip(before, self.parameters.values(), strict=True):
            factor = self._ratio.to(tensor.dtype).reshape(-1, *[1] * (tensor.dim() - 1))
            tensor.copy_(torch.lerp(old, tensor, factor))

    def _graph_parts(self) -> tuple[list[Tensor], Callable[[], Any]]:
        """The tensors that a step changes, and what completes its capture."""
        assert self._optimiser is not None
        changed = [*self.parameters.values(), *self.buffers.values(), *self._optimiser.state_tensors()]
        return changed, self._optimiser.tables
