"""SVI without its overhead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_hyperbolic.infer.arguments import signature, split_tensors
from pyro_hyperbolic.infer.aside import aside
from pyro_hyperbolic.infer.functional import (
    ConstantsOnDevice,
    Parameters,
    Program,
    Unvalidated,
    captured_parameters,
    compile_function,
    explained,
)
from pyro_hyperbolic.infer.graphs import CapturedStep
from pyro_hyperbolic.infer.optimiser import Factory, OneOptimiser
from pyro_hyperbolic.infer.tensor_elbo import TensorLoss, tensor_loss
from pyro_hyperbolic.infer.watch import NaNWatch


class FastSVI:
    r"""Takes what :class:`pyro.infer.SVI` takes, and gives the same losses and parameters for the same seed, faster.

    A step has no host synchronisation and one fused optimiser for all parameters. On CUDA it is captured in a graph and
    replayed; where asked, the whole of loss and gradient is compiled. The first step is an ordinary one, with Pyro's
    validation: it finds the parameters and reports what cannot be done fast (sites that are not reparametrised,
    enumeration) with the name of the site and the remedy. Later steps do not validate; every ``validate_every`` steps
    the loss is evaluated once more with validation, aside, so that a law that has left what its coordinates hold
    still raises its error.

    :param model: the model.
    :param guide: the guide, every site of which must be reparametrised.
    :param optim: a ``pyro.optim`` optimiser (with options and clipping per parameter and learning-rate schedules), or a
        function from parameters to a torch optimiser.
    :param loss: ``Trace_ELBO``, ``TraceMeanField_ELBO``, ``RenyiELBO`` or :class:`DReG_ELBO`; or a function
        ``(model, guide, *args, **kwargs)`` that returns a tensor.
    :param capture: capture the step in a CUDA graph; by default where the parameters are on a CUDA device. The programs
        must have static structure: what depends on Python numbers is fixed at the capture, per set of arguments.
    :param compile: compile loss and gradient (``torch.compile`` of the traced programs), per shape of the arguments.
        Compiled steps draw random numbers of their own: the losses then agree in law, not number by number.
    :param validate_every: how many steps lie between two validated evaluations.

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
        *,
        capture: bool | None = None,
        compile: bool = False,
        validate_every: int = 1000,
    ) -> None:
        if validate_every < 1:
            raise ValueError(f"validate_every must be at least 1, got {validate_every}.")
        self.model, self.guide, self.optim = model, guide, optim
        self.loss = tensor_loss(loss)
        self.capture, self.compile = capture, compile
        self.validate_every = validate_every
        self.steps = 0
        self._parameters: Parameters | None = None
        self._optimiser: OneOptimiser | None = None
        self._pending: dict[str, Any] | None = None
        self._compiled: dict[Any, tuple[Callable[..., Any], set[str]]] = {}
        self._captured: dict[Any, CapturedStep] = {}
        self._watch: NaNWatch | None = None
        self._graded: set[str] = set()

    def step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One gradient step; the loss as a 0-dim tensor, which nothing has waited for."""
        loss = self._advance(args, kwargs)
        self.steps += 1
        assert self._watch is not None
        self._watch.see(loss, self.steps)
        return loss

    def evaluate_loss(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss as a 0-dim tensor, without a step."""
        self._flush()
        if self._optimiser is None and self._pending is not None:
            self._discover(args, kwargs)
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
            raise ValueError("there is no state before the first step.")
        self._flush()
        tensors = {name: t.detach().clone() for name, t in self._parameters.tensors.items()}
        buffers = {name: t.detach().clone() for name, t in self._parameters.buffers.items()}
        optimiser = self._optimiser.state_dict()
        return {"parameters": tensors, "buffers": buffers, "optimiser": optimiser, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state; before the first step it is applied as soon as the parameters are known."""
        self._pending = state
        if self._optimiser is not None:
            self._apply_pending()

    @property
    def _device(self) -> torch.device:
        assert self._parameters is not None
        return next(iter(self._parameters.tensors.values())).device

    def _advance(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if self._optimiser is None:
            if self._pending is None:
                return self._first_step(args, kwargs)
            self._discover(args, kwargs)
        elif self.steps % self.validate_every == 0:
            assert self._parameters is not None
            with aside(), self._parameters.kept_buffers():
                self.loss(self.model, self.guide, *args, **kwargs)
        assert self._optimiser is not None
        if self._optimiser.captured:
            key = self._key(args, kwargs)
            if key not in self._captured:
                with explained("captured in a CUDA graph", "use capture=False"):
                    self._captured[key] = CapturedStep(self._step, args, kwargs, self._state_tensors())
            return self._captured[key].replay(args, kwargs)
        return self._step(*args, **kwargs)

    def _first_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with captured_parameters(self.model, self.guide) as found:
            loss = self.loss(self.model, self.guide, *args, **kwargs)
        self._set_up(found["parameters"])
        assert self._parameters is not None
        assert self._optimiser is not None
        if self.compile:
            # What cannot be compiled is to be reported now.
            self._compiled_step(args, kwargs)
        self._optimiser.zero_grad()
        loss.backward()
        self._graded = {name for name, t in self._parameters.tensors.items() if t.grad is not None}
        self._optimiser.step()
        return loss.detach()

    def _discover(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with aside(), captured_parameters(self.model, self.guide) as found:
            self.loss(self.model, self.guide, *args, **kwargs)
        self._set_up(found["parameters"])
        try:
            self._apply_pending()
        except Exception:
            self._optimiser = None  # the next step must not go on without the state
            raise

    def _set_up(self, parameters: Parameters) -> None:
        if not parameters.tensors:
            raise ValueError(
                "the programs have no parameters; register modules with pyro.module, or use PyroModules or pyro.param."
            )
        self._parameters = parameters
        self._optimiser = OneOptimiser(self.optim, parameters.tensors, parameters.names, self.capture)
        self._watch = NaNWatch()

    def _apply_pending(self) -> None:
        assert self._pending is not None
        assert self._parameters is not None
        assert self._optimiser is not None
        saved = {name: t.shape for name, t in self._pending["parameters"].items()}
        here = {name: t.shape for name, t in self._parameters.tensors.items()}
        other = sorted(name for name in saved | here if saved.get(name) != here.get(name))
        if other:
            raise ValueError(f"the state belongs to other programs: the parameters {other} are not the same in both.")
        self._optimiser.load_state_dict(self._pending["optimiser"])
        self._parameters.load_buffers(self._pending["buffers"])
        with torch.no_grad():
            for name, tensor in self._parameters.tensors.items():
                tensor.copy_(self._pending["parameters"][name])
        self.steps = self._pending["steps"]
        self._pending = None
        self._graded = {name for name, t in self._parameters.tensors.items() if t in self._optimiser.torch.state}
        self._watch = NaNWatch()
        # A captured graph writes to the state it was captured with.
        self._captured.clear()

    def _step(self, *args: Any, **kwargs: Any) -> Tensor:
        assert self._parameters is not None
        assert self._optimiser is not None
        self._optimiser.zero_grad()
        with pyro.validation_enabled(False):
            if self.compile:
                loss, used = self._compiled_gradients(args, kwargs)
            else:
                constants = ConstantsOnDevice() if self._optimiser.captured else contextlib.nullcontext()
                with self._parameters.only_these() as these, Unvalidated(), constants:
                    loss = self.loss(self.model, self.guide, *args, **kwargs)
                loss.backward()
                used = {name for name, t in self._parameters.tensors.items() if id(t) in these.used}
        self._as_stock(used)
        self._optimiser.step()
        return loss.detach()

    def _as_stock(self, used: set[str]) -> None:
        """Step what ``SVI`` would: the parameters that the programs used, with the gradient 0 where there is none.

        Those that never had a gradient are left alone.
        """
        assert self._parameters is not None
        for name, tensor in self._parameters.tensors.items():
            if name not in used:
                tensor.grad = None
            elif tensor.grad is not None:
                self._graded.add(name)
            elif name in self._graded:
                tensor.grad = torch.zeros_like(tensor)

    def _compiled_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Callable[..., Any], set[str]]:
        """Loss and gradients as a compiled function of parameters and tensors, and which parameters it uses."""
        assert self._parameters is not None
        key = self._key(args, kwargs)
        if key not in self._compiled:
            parameters = self._parameters
            inputs, rebuild = split_tensors(args, kwargs)
            used: set[str] = set()

            def loss(values: dict[str, Tensor], inputs: list[Tensor]) -> Tensor:
                args, kwargs = rebuild(inputs)
                with parameters.replaced(values) as asked:
                    result = self.loss(self.model, self.guide, *args, **kwargs)
                used.update(asked)
                return result

            tensors = {name: t.detach() for name, t in parameters.tensors.items()}
            with explained("compiled", "use compile=False"):
                function = compile_function(torch.func.grad_and_value(loss), tensors, inputs)
            self._compiled[key] = function, used
        return self._compiled[key]

    def _compiled_gradients(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, set[str]]:
        assert self._parameters is not None
        function, used = self._compiled_step(args, kwargs)
        tensors = {name: t.detach() for name, t in self._parameters.tensors.items()}
        gradients, value = function(tensors, split_tensors(args, kwargs)[0])
        for name, tensor in self._parameters.tensors.items():
            # A fused optimiser wants the parameter's layout.
            tensor.grad = gradients[name].contiguous()
        return value, used

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self._parameters is not None
        return signature(args, kwargs), self._parameters.mode()

    def _flush(self) -> None:
        if self._watch is not None:
            self._watch.flush()

    def _state_tensors(self) -> list[Tensor]:
        assert self._parameters is not None
        assert self._optimiser is not None
        state = [v for s in self._optimiser.torch.state.values() for v in s.values() if isinstance(v, Tensor)]
        return [*self._parameters.tensors.values(), *self._parameters.buffers.values(), *state]
