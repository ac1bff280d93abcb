"""The door to torch's compiler, whose parts have private names, each beside a public way.

``changes``
    is what the compiler does otherwise while it compiles our graphs, and how to do without.
``loops``
    is when the C++ compiler is given the loops that are for a CPU.
``replay``
    runs the loops of a compiled graph without Python, those of some rows on each core.
``graphs``
    traces functions, compiles the traces, and answers what ``programs`` asks of operations.

``loops`` imports ``changes``, ``replay`` imports ``loops``, and ``graphs`` imports both of the first.
"""
