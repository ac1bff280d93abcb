"""Loops on a CPU: what the C++ compiler is given, and when.

It needs most of a second for a file beside what it needs for the loops in it, and six seconds for torch's headers.
Torch gives it a file for every loop, after the last one is written (2.13). Here a file has many loops, and is compiled
as soon as it is full.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from pyro_hyperbolic.accelerate.compiler.changes import is_made


@functools.cache
def start_early(is_cuda: bool) -> None:
    """Let others do, while this thread traces, what the compiler would wait for.

    On CUDA its processes start. For a CPU the C++ compiler reads torch's headers, once and for all: six seconds.
    """
    try:
        from torch._inductor.async_compile import AsyncCompile  # slow to import

        if is_cuda:
            AsyncCompile.wakeup()
            return
        from torch._inductor import compile_fx, config  # noqa: F401  # all of it, before there is another thread
        from torch._inductor.codecache import CppPythonBindingsCodeCache
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list
    except ImportError:
        return
    # The processor says what it can do. That the C++ compiler can too is tried for the newest extensions alone; to try
    # the others takes eight seconds. What goes wrong here goes wrong again where it is reported.
    trusted = {"cpp.vec_isa_ok": True} if getattr(config.cpp, "vec_isa_ok", 0) is None else {}
    with contextlib.suppress(Exception), config.patch(trusted):
        valid_vec_isa_list()
    in_turn(lambda: CppPythonBindingsCodeCache.load_pybinding_async([], ""))


_tasks: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()


@functools.cache
def _start_thread() -> None:
    def work() -> None:
        while True:
            task = _tasks.get()
            with contextlib.suppress(Exception):  # the compiler will say what is wrong when it comes to the same
                task()

    threading.Thread(target=work, daemon=True).start()


def in_turn(task: Callable[[], Any]) -> None:
    """Let another thread do this, after all else that it was given before, with the settings that hold here."""
    _start_thread()
    _tasks.put(functools.partial(contextvars.copy_context().run, task))


def _forget_threads() -> None:
    """Of the compiler, in a process that was forked (as those of several chains are) and so has none of them."""
    global _tasks
    _tasks = queue.SimpleQueue()
    _start_thread.cache_clear()
    if "torch._inductor.async_compile" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):
            from torch._inductor.async_compile import AsyncCompile

            AsyncCompile.pool.cache_clear()  # which would wait for them for ever
            from torch._inductor.codecache import CppPythonBindingsCodeCache

            CppPythonBindingsCodeCache.cache.clear()  # and for what they have begun


if hasattr(os, "register_at_fork"):  # which Windows does not have
    os.register_at_fork(after_in_child=_forget_threads)


PLACES = "places_of_loops"  # the function of a file that tells where they are
_ENOUGH = 30_000  # characters of the loops of a file
_LOOP = re.compile(r'\s*#include <torch/csrc/inductor/cpp_prefix\.h>\s*extern "C"\s+void\s+kernel\(')
_ROW = '{"kernel", kernel_py, METH_VARARGS, ""},'


def _binding(name: str, types: list[str]) -> tuple[str, str, str]:
    """What torch writes beside a loop, for Python to call it: for the file, for this loop, and for the file again."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    args = ", ".join(f"parse_arg<{kind.replace('const ', '')}>(args, {n})" for n, kind in enumerate(types))
    text = CppPythonBindingsCodeCache.suffix_template.format(
        arg_len=len(types), call_entry_func=f"{name}({args}); Py_RETURN_NONE;", entry_func=name, extra_parse_arg=""
    )
    first, last = text.index(f"static PyObject* {name}_py("), text.index("static PyMethodDef py_methods[]")
    return text[:first], text[first:last], text[last:]


def _is_as_expected() -> bool:
    """Whether torch writes it as it did."""
    try:
        return _ROW in _binding("kernel", [])[2]
    except (ImportError, AttributeError, LookupError, ValueError):
        return False


class _File:
    """Loops that are one module of Python."""

    def __init__(self) -> None:
        self.loops: list[tuple[str, list[str]]] = []
        self._module: Callable[[], Any] | None = None

    @property
    def is_full(self) -> bool:
        return sum(len(source) for source, _ in self.loops) >= _ENOUGH

    def text(self) -> str:
        head, _, tail = _binding("kernel", [])
        parts, rows, places = ["#include <torch/csrc/inductor/cpp_prefix.h>", head], [], []
        for number, (source, types) in enumerate(self.loops):
            name = f"kernel_{number}"
            parts += [_LOOP.sub(f"static void {name}(", source, count=1), _binding(name, types)[1]]
            rows.append(_ROW.replace("kernel", name))
            if all(kind.endswith("*") for kind in types):
                args = ", ".join(f"static_cast<{kind}>(at[{n}])" for n, kind in enumerate(types))
                parts.append(f"static void at_{name}(void** at) {{ {name}({args}); }}")
                places.append(f"reinterpret_cast<uintptr_t>(at_{name})")
            else:
                places.append("uintptr_t(0)")
        # Where each loop is that takes pointers alone, for those who call it without Python.
        values = ", ".join(f"static_cast<unsigned long long>({place})" for place in places)
        parts.append(
            f"static PyObject* {PLACES}(PyObject*, PyObject*) {{"
            f' return Py_BuildValue("({"K" * len(places)})", {values}); }}'
        )
        rows.append(f'{{"{PLACES}", {PLACES}, METH_NOARGS, ""}},')
        return "\n".join([*parts, tail.replace(_ROW, "\n".join(rows))])

    def begin(self, submit: Callable[..., Any]) -> None:
        """Let the C++ compiler have it, in another thread."""
        from torch._inductor.codecache import CppPythonBindingsCodeCache

        self._module = CppPythonBindingsCodeCache.load_async(self.text(), submit_fn=submit)

    def loop(self, number: int) -> Any:
        """A compiled loop, for which this waits."""
        assert self._module is not None
        return getattr(self._module(), f"kernel_{number}")


class _Files:
    """The loops of one graph, in the order in which they are written.

    :param begin: called with every file that is full.
    """

    def __init__(self, begin: Callable[[_File], None]) -> None:
        self._begin, self._file = begin, _File()

    def add(self, source: str, types: list[str]) -> Callable[[], Any]:
        file, number = self._file, len(self._file.loops)
        file.loops.append((source, types))
        if file.is_full:
            self.close()
        return functools.partial(file.loop, number)

    def close(self) -> None:
        """Let what comes next be in another file."""
        file, self._file = self._file, _File()
        if file.loops:
            self._begin(file)


def _is_a_loop(source: str) -> bool:
    """Whether this is a loop and nothing else, so that it can be in a file with others."""
    return _LOOP.match(source) is not None and source.count("#include") == source.count('extern "C"') == 1


@contextlib.contextmanager
def joined_loops() -> Iterator[None]:
    """Let loops be compiled some at a time: first while the next ones are written, where all is kept on disk.

    The compiled module, in which every loop is a call of ``cpp_pybinding``, makes the same files of them.
    """
    try:
        from torch._inductor import async_compile
        from torch._inductor.codecache import LambdaFuture
        from torch._inductor.codegen.wrapper import PythonWrapperCodegen  # slow to import
    except ImportError:
        yield
        return
    writer: Any = PythonWrapperCodegen
    kind: Any = async_compile.AsyncCompile
    names = (kind, "cpp_pybinding"), (kind, "wait"), (kind, "submit"), (writer, "define_kernel")
    has_all = all(hasattr(owner, name) for owner, name in names) and hasattr(async_compile, "get_compile_threads")
    if not is_made("files") or not has_all or not _is_as_expected():
        yield
        return
    compile_one, wait, define = kind.cpp_pybinding, kind.wait, writer.define_kernel

    def is_joined(source: str) -> bool:
        return async_compile.get_compile_threads() > 1 and _is_a_loop(source)

    def compile_joined(compiling: Any, types: list[str], source: str) -> Any:
        if not is_joined(source):
            return compile_one(compiling, types, source)
        files = vars(compiling).setdefault("files", _Files(lambda file: file.begin(compiling.submit)))
        return LambdaFuture(files.add(source, types))

    def wait_for_all(compiling: Any, scope: Any) -> None:
        if "files" in vars(compiling):
            vars(compiling).pop("files").close()
        wait(compiling, scope)

    def note(files: _Files, types: list[str], source: str) -> None:
        if is_joined(source):
            files.add(source, types)

    def define_and_begin(writing: Any, name: str, body: str, *args: Any, **kwargs: Any) -> Any:
        if body.startswith("async_compile.cpp_pybinding("):
            # The call that the compiled module will make, of which another thread does what may take time.
            files = vars(writing).setdefault("files", _Files(lambda file: in_turn(lambda: file.begin(kind.submit))))
            eval(body, {"async_compile": SimpleNamespace(cpp_pybinding=functools.partial(note, files))})
        return define(writing, name, body, *args, **kwargs)

    kind.cpp_pybinding, kind.wait, writer.define_kernel = compile_joined, wait_for_all, define_and_begin
    try:
        yield
    finally:
        kind.cpp_pybinding, kind.wait, writer.define_kernel = compile_one, wait, define
