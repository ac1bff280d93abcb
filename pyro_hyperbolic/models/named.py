"""The base class of the models, which names their parameters in Pyro's store."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator

import pyro
from pyro.infer.util import is_validation_enabled
from pyro.nn import PyroModule
from pyro.params import param_with_module_name
from torch import Tensor, nn

from pyro_hyperbolic.ops.checks import inspectable

# Parameters that models have registered. What the store holds beside them was loaded, or set by hand.
_REGISTERED: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


class NamedModel(PyroModule):
    """A module whose programs register its parameters in Pyro's store, under the name of the model.

    The programs begin with ``pyro.module(name, self)``. The parameter ``encoder.loc.weight`` of a model named ``"a"``
    is ``"a$$$encoder.loc.weight"`` there. Pyro keeps the first parameter that it sees under a name, so two models in
    one process need two names. By default the name is that of the class, followed by ``_1``, ``_2`` and so on where the
    store holds those of other models already. It depends on the order in which models first run, and begins anew after
    ``pyro.clear_param_store()``, so the state of an optimiser fits the same program in another process.

    Parameters that you load with ``pyro.get_param_store().load(path)`` are taken by
    ``pyro.module(name, model, update_module_params=True)``, before the model runs; without this call it is an error.

    :param name: a name of your own. It is an error if the store holds other parameters under that name.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        if name is not None and (not isinstance(name, str) or not name or "$$$" in name):
            raise ValueError(f"name must be a word without '$$$', or None, got {name!r}.")
        self.name = name

    def _register(self) -> None:
        """``pyro.module``, by a name that is no other model's."""
        parameters = dict(self.named_parameters())
        if not all(isinstance(parameter, nn.Parameter) for parameter in parameters.values()):
            # Inference runs the model on other tensors in the place of its parameters: these are not for the store.
            return
        store = dict(pyro.get_param_store().named_parameters())
        for name in self._names():
            known = {key: store.get(param_with_module_name(name, key)) for key in parameters}
            others = [key for key, tensor in known.items() if tensor is not None and tensor is not parameters[key]]
            if not others:
                pyro.module(name, self)
                _REGISTERED.update((id(parameter), parameter) for parameter in parameters.values())
                return
            if any(_REGISTERED.get(id(known[key])) is not known[key] for key in others):
                break
        raise ValueError(
            f"name {name!r} is that of other parameters in Pyro's store, among them {others[0]!r}; give each model its"
            " own name, or call pyro.clear_param_store() before a new one. If they were loaded from a file or set for"
            f" this model, call pyro.module({name!r}, model, update_module_params=True)."
        )

    def _check_finite(self, wanted: str, *values: Tensor) -> None:
        """Say what to do when training has diverged, before a distribution refuses its parameters.

        :param wanted: which network must give what, for the error if one of ``values`` is not finite.
        """
        if not is_validation_enabled() or not inspectable(*values) or all(bool(t.isfinite().all()) for t in values):
            return
        lost = [key for key, parameter in self.named_parameters() if not bool(parameter.isfinite().all())]
        cause = f"parameter {lost[0]!r} is not finite either" if lost else "its parameters or its input are too large"
        raise ValueError(
            f"the {wanted}, but does not; {cause}. If this happened in training, it has diverged: lower the learning"
            " rate, or clip gradients as pyro.optim.ClippedAdam does. If not, check the data."
        )

    def _names(self) -> Iterator[str]:
        """The names that it may have, in order."""
        if self.name is not None:
            yield self.name
            return
        base = type(self).__name__
        yield base
        for number in itertools.count(1):
            yield f"{base}_{number}"
