"""A model and a guide as things that a trainer can hold: functions of their parameters and of their arguments.

Nothing here knows a loss or an optimiser. ``bounds``, ``trainers`` and ``processes`` are built on these files:

``arguments``
    finds the tensors among the arguments of a step and puts others in their place. It cuts a batch into rows, and
    names what a captured or compiled step depends on: the shapes of tensors and the values of all else.
``functional``
    ``Found`` is open while the programs run. It notes their parameters, their modules and the buffers that they change,
    and makes ``Parameters`` of them. ``Parameters.run`` then runs the same programs on other tensors, and nothing
    reaches Pyro's parameter store: the pair has become a function, of which there can be a gradient, a ``vmap`` or a
    trace.
``modes``
    What such a function needs of the code inside it: no validation, noise that is not drawn in place, constants and
    decompositions that do not wait for the host. ``functional`` and the trainers open these modes.
``compiled``
    traces a function once and compiles the trace. ``explained`` turns what torch raises on the way into an error with
    the name of the last site and a remedy.
``rows``
    compiles functions of many rows, such as energies of all chains, so that the cores of a CPU share them.
``rewrites``
    brings a trace into a form that the compiler makes shareable and faster code of.
``surroundings``
    is what programs read from Python: attributes and variables, which a captured or compiled step holds.
``checks``
    is where others register checks of a validated evaluation: contexts around the run, and functions of the traces.
``isolation``
    is open around an evaluation without gradients that must leave no trace in the random numbers.
``warning``
    warns at the line of the user, however many of our own lie between.

Imports point one way: ``functional`` imports ``modes`` and ``surroundings``, ``surroundings`` imports ``warning``,
``compiled`` imports ``rewrites`` and ``warning``, and ``rows`` imports ``compiled``. Private names are in
``accelerate/private.py`` and ``accelerate/compiler``.
"""
