"""When the value of a tensor may be looked at, and when it is asked for."""

from __future__ import annotations

import torch
from torch import Tensor

_TRACING = torch._C._TorchDispatchModeKey.PROXY  # set while make_fx traces


def inspectable(*tensors: Tensor) -> bool:
    """Whether the values can be read on the host now.

    They cannot under ``vmap`` and other function transforms, while compiling or tracing, and while a
    CUDA graph is captured: checks of values are left out there.
    """
    if torch.compiler.is_compiling() or torch._C._get_dispatch_mode(_TRACING) is not None:
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    return not any(
        torch._C._functorch.is_functorch_wrapped_tensor(t) or isinstance(t, torch._subclasses.FakeTensor) or t.is_meta
        for t in tensors
    )


def validating() -> bool:
    """Whether torch validates distributions by default, which ``pyro.enable_validation`` sets."""
    return torch.distributions.Distribution._validate_args
