"""One training in several processes, with the result of one process.

How a step of :class:`~pyro_hyperbolic.accelerate.DistributedSVI` flows through these files:

1. ``group`` has joined the processes that ``torchrun`` started. It turns a lost process into an error that says so.
2. Every process is given the whole batch. ``distributed`` takes the rows of its own, by ``Rows`` of ``whole_batch``.
3. The programs run on these rows inside ``WholeBatch``, which draws the noise of the whole batch and keeps that of
   the rows, and scales each density as in the whole batch.
4. The losses are summed over the processes. In the same message they compare their random numbers and the parameters
   that they have used; a difference is an error. Then the gradients are summed, by torch's ``DistributedDataParallel``.
5. In the first two steps, and where a site or a parameter is new, ``Sharing`` of ``whole_batch`` compares the loss of a
   few data with that of two shares of them, to find programs whose batches cannot be shared.
6. The optimiser steps as in ``FastSVI``, from which ``DistributedSVI`` inherits all else.

Imports point one way: ``distributed`` -> ``whole_batch`` and ``group``, and from there to ``trainers``, ``bounds`` and
``programs``.
"""
