"""Parameters of the models in Pyro's store."""

from __future__ import annotations

import contextlib

import pyro
from pyro.params import param_with_module_name
from torch import nn


def register(**modules: nn.Module) -> None:
    """``pyro.module`` for each of the modules, of the model that runs now.

    Pyro keeps the first parameter it sees under a name, so that a second model in the same process would leave its
    own untrained, without a word. Here the store forgets what another model has left under the name.
    """
    store = pyro.get_param_store()
    known = dict(store.named_parameters())
    for module_name, module in modules.items():
        parameters = dict(module.named_parameters())
        if not all(isinstance(parameter, nn.Parameter) for parameter in parameters.values()):
            # Inference runs the model on other tensors in the place of its parameters: these are not for the store.
            continue
        for key, parameter in parameters.items():
            name = param_with_module_name(module_name, key)
            if known.get(name, parameter) is not parameter:
                # A parameter that modules share has several names, of which the store can forget the last only.
                with contextlib.suppress(KeyError):
                    del store[name]
        pyro.module(module_name, module)
