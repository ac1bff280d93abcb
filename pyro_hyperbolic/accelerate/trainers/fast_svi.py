"""SVI without its overhead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Literal

import pyro
import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_hyperbolic.accelerate.bounds.tensor_elbo import TensorLoss, tensor_loss
from pyro_hyperbolic.accelerate.programs.arguments import as_arguments, signature, split_tensors, step_on
from pyro_hyperbolic.accelerate.programs.compiled import checked_compile, compile_function, explained
from pyro_hyperbolic.accelerate.programs.functional import (
    Found,
    Parameters,
    Program,
    check_program,
    device_of,
    no_parameters,
    unknown_parameter,
)
from pyro_hyperbolic.accelerate.programs.isolation import isolated
from pyro_hyperbolic.accelerate.programs.modes import ConstantsOnDevice, DecompositionsOnDevice, Unvalidated
from pyro_hyperbolic.accelerate.trainers.graphs import CapturedSteps
from pyro_hyperbolic.accelerate.trainers.minibatch import Epoch
from pyro_hyperbolic.accelerate.trainers.optimiser import Factory, OneOptimiser
from pyro_hyperbolic.accelerate.trainers.run import run_steps
from pyro_hyperbolic.accelerate.trainers.state import check_fits, check_state
from pyro_hyperbolic.accelerate.trainers.transfer import Transfer
from pyro_hyperbolic.accelerate.trainers.validation import Deferred, checked_interval, interval
from pyro_hyperbolic.accelerate.trainers.watch import NaNWatch

Gradients = tuple[Tensor, dict[str, Tensor | None], dict[str, Tensor]]


class FastSVI:
    r"""Takes what :class:`pyro.infer.SVI` takes, and gives the same losses and parameters for the same seed, faster.

    A step has no host synchronisation and one fused optimiser for all parameters. On CUDA it is captured in a graph
    and replayed; where asked, the whole of loss and gradient is compiled. The first step is an ordinary one, with
    Pyro's validation: it finds the parameters and reports what cannot be done fast (sites of the guide that are
    neither reparametrised nor enumerated) with the name of the site and the remedy. Later steps do not validate;
    now and then (``validate_every``) the loss is evaluated once more with validation, aside, so that a distribution
    that has left what its coordinates hold still raises its error.

    ``optim`` is used as by ``SVI``: its state is always current in ``optim.get_state()`` and ``optim.save()``, a state
    that it was given is gone on from, two trainers may share it, and learning rates may be changed in
    ``optim.optim_objs``. Parameters may be replaced or cleared in Pyro's store, and new ones may appear.

    :param model: the model.
    :param guide: the guide, every site of which must be reparametrised.
    :param optim: a ``pyro.optim`` optimiser (with options and clipping per parameter and learning-rate schedules), or a
        function from parameters to a torch optimiser.
    :param loss: ``Trace_ELBO``, ``TraceMeanField_ELBO``, ``RenyiELBO``, ``TraceEnum_ELBO`` or :class:`DReG_ELBO`; or a
        function ``(model, guide, *args, **kwargs)`` that returns a tensor.
    :param capture: capture the step in a CUDA graph; by default where the parameters are on a CUDA device. The programs
        must have static structure. A step is captured per set of shapes and values among the arguments, the attributes
        of modules, the variables that the programs read and the options of the optimiser (see
        :class:`~pyro_hyperbolic.accelerate.programs.surroundings.Surroundings`); a number that changes in every step is
        better made a tensor. What the programs read from elsewhere (a file) is fixed at the capture.
    :param compile: compile loss and gradient (the traced programs, by torch's inductor), under the same conditions.
        Compiled steps draw random numbers of their own: losses and parameters then agree in distribution, not number by
        number. With ``"tuned"`` the compiler takes longer, and on CUDA tries several kernels for every matrix product.
    :param validate_every: how many steps lie between two validated evaluations; by default 1,000, and 10,000 where
        steps are captured, of which an evaluation takes as long as a hundred.

    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.models import HyperbolicVAE
    >>> vae = HyperbolicVAE(PoincareBall(1.0), 2, 5, hidden_dim=8, likelihood="normal")
    >>> svi = FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 1e-3}), pyro.infer.Trace_ELBO())
    >>> svi.step(torch.randn(10, 5)).shape
    torch.Size([])
    """

    def __init__(
        self,
        model: Program,
        guide: Program,
        optim: PyroOptim | Factory,
        loss: ELBO | TensorLoss,
        loss_and_grads: None = None,
        num_samples: int = 0,
        num_steps: int = 0,
        *,
        capture: bool | None = None,
        compile: bool | Literal["tuned"] = False,
        validate_every: int | None = None,
    ) -> None:
        if loss_and_grads is not None:
            raise ValueError("loss_and_grads must be None: the gradients are those of loss; or use pyro.infer.SVI.")
        if num_samples or num_steps:
            raise ValueError(
                f"num_samples and num_steps must be 0, got {num_samples} and {num_steps}: they belong to the deprecated"
                " pyro.infer.SVI.run; call step or run, and draw posterior samples by pyro.infer.Predictive."
            )
        self.loss = tensor_loss(loss)
        self.num_samples, self.num_steps = num_samples, num_steps
        self.capture, self.compile = capture, checked_compile(compile)
        self.validate_every = checked_interval(validate_every)
        check_program("model", model)
        check_program("guide", guide)
        self.model, self.guide, self.optim = model, guide, optim
        self.steps = 0
        self._parameters: Parameters | None = None
        self._optimiser: OneOptimiser | None = None
        self._pending: dict[str, Any] | None = None
        self._begun: set[Any] = set()
        self._compiled: dict[Any, tuple[Callable[..., Gradients], set[str]]] = {}
        self._captured = CapturedSteps(self._graph_parts)
        self._deferred = Deferred()
        self._watch: NaNWatch | None = None
        self._graded: set[str] = set()

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One gradient step; the loss as a 0-dim tensor, which nothing has waited for."""
        loss = self._advance(args, kwargs)
        self.steps += 1
        assert self._watch is not None
        self._watch.see(loss.unsqueeze(0), self.steps)
        return loss

    def run(self, batches: Iterable[Any], *, progress: bool = False) -> Tensor:
        """A step for each of the batches; the losses as one tensor.

        Captured steps with the batches of an epoch of :class:`Minibatches` are taken many at a time, in a graph that
        draws the batches too. Those of any other iterable are drawn, and copied to the device, while it is at work on
        the last one. An interrupt loses no more than the steps of one graph; what was trained before stays.

        :param batches: arguments of :meth:`step`: a tuple holds several, a dictionary keywords. For example an epoch of
            :class:`Minibatches`, or a ``DataLoader``.
        :param progress: show a progress bar.
        """
        transfer = Transfer(self._place)
        losses = run_steps(batches, lambda batch: step_on(self.step, batch), self._block, transfer, progress)
        self._deferred.make()
        return torch.cat(losses) if losses else torch.empty(0)

    def loss_and_grads(self, model: Program, guide: Program, *args: Any, **kwargs: Any) -> Tensor:
        """The loss as a 0-dim tensor; its gradients are added to those of the parameters. There is no step."""
        loss = self.loss(model, guide, *args, **kwargs)
        if loss.requires_grad:
            loss.backward()
        return loss.detach()

    def evaluate_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss as a 0-dim tensor, without a step."""
        self._flush()
        if self._optimiser is None and self._pending is not None:
            self._resume(args, kwargs)
        with torch.no_grad():
            return self.loss(self.model, self.guide, *args, **kwargs)

    def named_parameters(self) -> dict[str, Tensor]:
        """The unconstrained parameters by name, once the first step has found them."""
        return {} if self._parameters is None else dict(self._parameters.tensors)

    def state_dict(self) -> dict[str, Any]:
        """All that a run goes on from but the state of torch's generator.

        These are parameters, buffers, optimiser, schedule and step.
        """
        if self._pending is not None:
            return self._pending
        if self._optimiser is None or self._parameters is None:
            raise ValueError("there is no state before the first step; call step or run first.")
        self._flush()
        tensors = {name: t.detach().clone() for name, t in self._parameters.tensors.items()}
        buffers = {name: t.detach().clone() for name, t in self._parameters.buffers.items()}
        optimiser = self._optimiser.state_dict()
        return {"parameters": tensors, "buffers": buffers, "optimiser": optimiser, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; before the first step it is applied as soon as the parameters are known."""
        check_state(state)
        if self._optimiser is None:
            self._pending = state
        else:
            self._apply(state)

    @property
    def _device(self) -> torch.device:
        assert self._parameters is not None
        return self._parameters.device

    def _place(self) -> torch.device | None:
        """Where captured steps are, as far as that is known."""
        if self.capture is False:
            return None
        return device_of(self.model, self.guide) if self._parameters is None else self._device

    def _advance(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if self._optimiser is None and self._pending is not None:
            self._resume(args, kwargs)
        if self._optimiser is None:
            return self._ordinary_step(args, kwargs, validated=True)
        assert self._parameters is not None
        self._validate(1, args, kwargs)
        self._take_over_changes()
        if not self._is_kept:
            return self._ordinary_step(args, kwargs)
        key = self._key(args, kwargs)
        if key not in self._begun or not self._parameters.are_current():
            # The first step of a kind finds the parameters, and makes the state of their optimiser.
            return self._ordinary_step(args, kwargs)
        if not self._optimiser.captured:
            return self._fast_step(*args, **kwargs)
        return self._captured.replay(key, self._fast_step, args, kwargs)

    def _block(self, epoch: Epoch, rows: Tensor) -> Tensor | None:
        """The steps with some batches, given by their rows, in one graph; ``None`` before a step of the kind."""
        if self._optimiser is None or not self._optimiser.captured:
            return None
        assert self._parameters is not None
        assert self._watch is not None
        args, kwargs = as_arguments(epoch.source.take(rows[0]))
        self._take_over_changes()
        key = self._key(args, kwargs)
        if key not in self._begun or not self._parameters.are_current():
            return None
        if self._parameters.buffers:
            self._validate(len(rows), args, kwargs)  # it sets them back, so no step must be under way
        elif self._is_due(len(rows)):
            self._deferred.put_off(lambda: self._evaluate_validated(args, kwargs), rows.device)

        def steps(rows: Tensor) -> Tensor:
            return torch.stack([step_on(self._fast_step, epoch.source.take(index)) for index in rows])

        losses = self._captured.replay((epoch.source, len(rows), key), steps, (rows,), {}, warm_up=1)
        self.steps += len(rows)
        self._watch.see(losses, self.steps)
        return losses

    def _validate(self, count: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Evaluate the loss with validation, aside, where it is due in one of the next steps."""
        if self._is_due(count):
            self._evaluate_validated(args, kwargs)

    def _is_due(self, count: int) -> bool:
        assert self._optimiser is not None
        return self.steps > 0 and -self.steps % interval(self.validate_every, self._optimiser.captured) < count

    def _evaluate_validated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self._parameters is not None
        with isolated(), self._parameters.kept_buffers():
            self.loss(self.model, self.guide, *args, **kwargs)

    def _take_over_changes(self) -> None:
        """What has happened to the optimiser since the last step."""
        assert self._parameters is not None
        assert self._optimiser is not None
        if self._optimiser.optim is not self.optim:
            self._make_optimiser(self._parameters)
        elif self._optimiser.sync():
            self._forget_graphs()
        if not self._stepped() <= self._graded:
            self._graded |= self._stepped()
            self._forget_graphs()

    def _ordinary_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], validated: bool = False) -> Tensor:
        """A step that runs the programs, with whatever parameters they have."""
        with contextlib.ExitStack() as stack:
            if not validated:
                stack.enter_context(pyro.validation_enabled(False))
                stack.enter_context(Unvalidated())
            found = Found(self.model, self.guide, known=self._parameters, watch=bool(self.compile))
            stack.enter_context(found)
            if self._parameters is not None and self._is_kept:
                loss = self._parameters.surroundings.ignore_written(
                    lambda: self.loss(self.model, self.guide, *args, **kwargs)
                )
            else:
                loss = self.loss(self.model, self.guide, *args, **kwargs)
        if found.new or self._optimiser is None:
            self._set_up(found.parameters)
        assert self._parameters is not None
        assert self._optimiser is not None
        if self._is_kept:
            key = self._key(args, kwargs)
            if self.compile and key not in self._compiled:
                changed = found.changed(self._parameters)
                # What cannot be compiled is to be reported now.
                made = self._parameters.surroundings.ignore_written(lambda: self._make_compiled(args, kwargs, changed))
                key = self._key(args, kwargs)
                self._compiled[key] = made
            if key not in self._begun:
                self._begun.add(key)
                self._parameters.surroundings.warn_of_many(self._begun, key[0])
        self._optimiser.zero_grad()
        if loss.requires_grad:
            loss.backward()
        self._apply_gradients(found.used(self._parameters))
        return loss.detach()

    @property
    def _is_kept(self) -> bool:
        """Whether steps are kept to be run again without the programs, as compiled code or in a graph."""
        return bool(self.compile) or (self._optimiser is not None and self._optimiser.captured)

    def _fast_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """A step that can be captured: no parameter is new."""
        assert self._parameters is not None
        assert self._optimiser is not None
        with pyro.validation_enabled(False):
            if self.compile:
                loss, used = self._compiled_gradients(args, kwargs)
            else:
                self._optimiser.zero_grad()
                found = Found(self.model, self.guide, known=self._parameters)
                with found, Unvalidated(), ConstantsOnDevice(), DecompositionsOnDevice():
                    loss = self.loss(self.model, self.guide, *args, **kwargs)
                if found.new:
                    raise unknown_parameter(found.new[0])
                if loss.requires_grad:
                    loss.backward()
                used = found.used(self._parameters)
        self._apply_gradients(used)
        return loss.detach()

    def _apply_gradients(self, used: set[str]) -> None:
        """Step what ``SVI`` would: the parameters that the programs used, with the gradient 0 where there is none.

        Those that never had a gradient, in this trainer or another one with its optimiser, are left alone.
        """
        assert self._parameters is not None
        assert self._optimiser is not None
        for name, tensor in self._parameters.tensors.items():
            if name not in used:
                tensor.grad = None
            elif tensor.grad is not None:
                self._graded.add(name)
            elif name in self._graded:
                tensor.grad = torch.zeros_like(tensor)
        self._optimiser.step()

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find the parameters, and make what steps them, without a step."""
        with isolated(), Found(self.model, self.guide) as found:
            self.loss(self.model, self.guide, *args, **kwargs)
        self._set_up(found.parameters)

    def _resume(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Go on from the state that is waiting for the parameters to be known."""
        assert self._pending is not None
        self._begin(args, kwargs)
        try:
            self._apply(self._pending)
            self._pending = None
        except Exception:
            self._optimiser = None  # the next step must not go on without the state
            raise

    def _set_up(self, parameters: Parameters) -> None:
        if not parameters.tensors:
            raise no_parameters(parameters)
        self._graded &= parameters.tensors.keys()
        self._parameters = parameters
        self._compiled.clear()
        self._make_optimiser(parameters)
        if self._watch is None:
            self._watch = NaNWatch()

    def _make_optimiser(self, parameters: Parameters) -> None:
        self._optimiser = OneOptimiser(self.optim, parameters.tensors, parameters.names, self.capture)
        self._graded |= self._stepped()
        self._forget_graphs()

    def _stepped(self) -> set[str]:
        """The parameters that have had a gradient, some of them in another trainer with the same optimiser."""
        assert self._parameters is not None
        assert self._optimiser is not None
        state = self._optimiser.torch.state
        return {name for name, tensor in self._parameters.tensors.items() if state.get(tensor)}

    def _forget_graphs(self) -> None:
        """A captured graph writes to the state it was captured with; another one has to be made first."""
        self._captured.clear()
        self._begun.clear()

    def _apply(self, state: dict[str, Any]) -> None:
        assert self._parameters is not None
        assert self._optimiser is not None
        check_fits(state, self._parameters.tensors, self._parameters.buffers, "other programs")
        self._optimiser.load_state_dict(state["optimiser"])
        self._parameters.load_buffers(state["buffers"])
        with torch.no_grad():
            for name, tensor in self._parameters.tensors.items():
                tensor.copy_(state["parameters"][name])
        self.steps = state["steps"]
        self._graded = self._stepped()
        self._watch = NaNWatch()
        self._forget_graphs()

    def _make_compiled(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], changed: set[str]
    ) -> tuple[Callable[..., Gradients], set[str]]:
        """Loss, gradients and the buffers that change as a compiled function, and which parameters it uses."""
        assert self._parameters is not None
        parameters = self._parameters
        inputs, rebuild = split_tensors(args, kwargs)
        trained = [name for name, t in parameters.tensors.items() if t.requires_grad]
        used: set[str] = set()

        def gradients(values: dict[str, Tensor], buffers: dict[str, Tensor], inputs: list[Tensor]) -> Gradients:
            args, kwargs = rebuild(inputs)
            with torch.enable_grad():
                leaves = {name: t.detach().requires_grad_(name in trained) for name, t in values.items()}
                loss, run = parameters.run(
                    lambda: self.loss(self.model, self.guide, *args, **kwargs), leaves, buffers, changed
                )
                wanted = [leaves[name] for name in trained]
                # Unlike torch.func.grad it tells a gradient that is 0 from none.
                found: Any = torch.autograd.grad(loss, wanted, allow_unused=True) if loss.requires_grad else ()
            gradients: dict[str, Tensor | None] = dict(zip(trained, found, strict=False))
            # What has a gradient was used, whatever the programs said of it.
            used.update(run.used, [name for name, gradient in gradients.items() if gradient is not None])
            return loss.detach(), gradients, {name: t.detach() for name, t in run.buffers.items()}

        with explained("compiled", "use compile=False"):
            tune = self.compile == "tuned"
            given = self._values(), parameters.buffers, inputs
            return compile_function(gradients, *given, tune=tune, quick=not tune), used

    def _compiled_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, set[str]]:
        assert self._parameters is not None
        function, used = self._compiled[self._key(args, kwargs)]
        buffers = self._parameters.buffers
        loss, gradients, new = function(self._values(), buffers, split_tensors(args, kwargs)[0])
        with torch.no_grad():
            for name, value in new.items():
                buffers[name].copy_(value)
        for name, tensor in self._parameters.tensors.items():
            gradient = gradients.get(name)
            # A fused optimiser wants the parameter's layout.
            tensor.grad = None if gradient is None else gradient.contiguous()
        return loss, used

    def _values(self) -> dict[str, Tensor]:
        assert self._parameters is not None
        return {name: t.detach() for name, t in self._parameters.tensors.items()}

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._parameters is not None
        return signature(args, kwargs), self._parameters.surroundings.key()

    def _flush(self) -> None:
        if self._watch is not None:
            self._watch.flush()

    def _graph_parts(self) -> tuple[list[Tensor], Callable[[], Any]]:
        """The tensors that a step changes, and what completes its capture."""
        assert self._parameters is not None
        assert self._optimiser is not None
        own = [*self._parameters.tensors.values(), *self._parameters.buffers.values()]
        return [*own, *self._optimiser.state_tensors()], self._optimiser.tables
