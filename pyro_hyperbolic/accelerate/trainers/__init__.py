"""Training without the overhead of ``pyro.infer.SVI``: one pair of programs, or many in one step.

How a step of :class:`~pyro_hyperbolic.accelerate.FastSVI` flows through these files:

1. ``minibatch`` yields a batch, whose rows it takes on the device; ``rows`` are those of dense and sparse tensors and
   of files. ``run`` asks for many steps at a time: where steps are captured it hands over the rows of the
   next batches, and one graph then draws these batches too. Batches of anything else, from the host, ``transfer``
   copies to the device beside the steps before.
2. ``fast_svi`` does the first step as ``SVI`` would, with validation. ``programs.functional`` finds the parameters in
   this run, and ``bounds.tensor_elbo`` gives the loss as a tensor.
3. ``optimiser`` makes one torch optimiser for all parameters. It works on the state that the ``PyroOptim`` has for each
   of them, and before every step takes over what was changed there.
4. The first step with arguments of a new kind (other shapes, other numbers, another mode of the modules) runs the
   programs and, where asked, compiles the loss with its gradient by ``programs.compiled``. On a CUDA device ``graphs``
   captures the next one, optimiser included, and replays it from then on. ``adam`` and its kernel ``adam_kernel``
   are Adam in one launch, for captured steps.
5. The gradients reach the optimiser, for the parameters that ``SVI`` would step. ``watch`` is shown the loss and warns
   where it is no longer finite, without waiting for the device. Now and then the loss is evaluated once more with
   validation, isolated from the run; ``validation`` says when, and does so beside the steps that the device has been
   given.

``ensemble`` is the same flow for many members. ``members`` checks that they are alike. Their parameters are stacked
before the first step, and the loss of one member with its gradient is mapped over the stack.

``state`` checks what ``load_state_dict`` is given, in both.

Imports point one way: ``fast_svi`` and ``ensemble`` -> ``members``, which do not know each other, import ``run`` ->
``minibatch``, ``transfer``, ``optimiser`` -> ``adam`` -> ``adam_kernel``, ``graphs``, ``validation``, ``state`` and
``watch``; and from all of them to ``bounds`` and ``programs``.
"""
