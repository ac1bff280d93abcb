"""The kernel of :mod:`~pyro_hyperbolic.accelerate.trainers.adam`. It needs Triton, part of torch's builds for CUDA."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def adam_kernel(
    table,
    sizes,
    parameter_of_block,
    block_of_parameter,
    rate,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr,
    EPS: tl.constexpr,
    DECAY: tl.constexpr,
    DECOUPLED: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One block of one parameter: what torch's fused Adam does, in its order.

    A row of ``table`` has the addresses of a parameter, its gradient, its two moments and its number of steps.
    """
    number = tl.load(parameter_of_block + tl.program_id(0)).to(tl.int64)
    start = tl.load(block_of_parameter + tl.program_id(0)).to(tl.int64) * BLOCK
    row = table + number * 5
    parameters = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16)
    gradients = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16)
    means = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(tl.float32)), 16)
    squares = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(tl.float32)), 16)
    step = tl.load(tl.load(row + 4).to(tl.pointer_type(tl.float32))).to(tl.float64)
    lr = tl.load(rate)
    # In float64: 1 - beta ** step would lose the digits of the first steps.
    correction1 = (1.0 - tl.exp(step * LOG_BETA1)).to(tl.float32)
    correction2 = tl.sqrt(1.0 - tl.exp(step * LOG_BETA2)).to(tl.float32)

    index = start + tl.arange(0, BLOCK)
    inside = index < tl.load(sizes + number)
    p = tl.load(parameters + index, mask=inside)
    g = tl.load(gradients + index, mask=inside)
    m = tl.load(means + index, mask=inside)
    v = tl.load(squares + index, mask=inside)
    if MAXIMIZE:
        g = -g
    if DECAY != 0:
        if DECOUPLED:
            p -= lr * DECAY * p
        else:
            g += DECAY * p
    m += (1.0 - BETA1) * (g - m)
    v = BETA2 * v + (1.0 - BETA2) * g * g
    p -= (lr / correction1) * m / (tl.sqrt(v) / correction2 + EPS)
    tl.store(parameters + index, p, mask=inside)
    tl.store(means + index, m, mask=inside)
    tl.store(squares + index, v, mask=inside)
