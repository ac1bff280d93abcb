"""What programs read beside their arguments: attributes of modules, variables of functions, and what is in these."""

from __future__ import annotations

import argparse
import enum
import functools
import inspect
import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Transform

from pyro_hyperbolic.accelerate.programs.warning import warn_user

# By value, and by type: 1, 1.0 and True are equal, and programs that hold them need not be.
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range)
_CONTAINERS = (dict, list, deque, set, frozenset)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)  # of the standard library, but what is in them is the user's
# Objects of these are taken by identity, and of their functions no global variable is read.
_LIBRARIES = frozenset({"torch", "pyro", "numpy", *sys.stdlib_module_names}) - {"__main__"}
_OURS = frozenset({__name__.partition(".")[0]})
# Larger containers, and what lies deeper, are taken by identity.
_LARGEST, _DEEPEST = 256, 8
_MANY = 8  # steps for arguments of one kind, at which something seems to change all the time
_OF_MODULES = frozenset(vars(nn.Module()))  # attributes that every module has
# What the attributes begin with in which transforms of torch, Pyro and ours remember their last call: nothing that they
# compute depends on it.
_REMEMBERED = "_cached", "_inv", "_last", "_drew"

Place = tuple[int, Any]  # a table or a cell, and a name in it


class Surroundings:
    """What programs can read from Python, and a key that changes where any of it does.

    A captured or compiled step holds what the programs read when they ran: the branch of ``self.kind == "wide"`` and
    the number that ``self.scale`` was. Its key therefore holds

    - the attributes of the modules, and of other objects of the user's that are met there, and their classes';
    - the variables of an enclosing function that the programs use, the defaults of their arguments, and the global
      variables that they, their methods and the functions called from there use by name, in Python modules and
      classes of the user's too (``settings.scale``);
    - what lists, tuples, sets and dictionaries among these contain, and classes derived from them.

    Numbers, strings, ``None``, dtypes and members of an ``Enum`` count by value. All else (a tensor, an array, an
    object of torch or Pyro, a container of more than 256 entries) counts by identity: another object is seen, a change
    inside of it is not. What is written into a tensor in place needs no key, for steps read the tensor.

    As long as nothing has changed, which is found without a loop in Python, the last key is returned.

    :param roots: the programs and their modules.
    :ivar written: what is left out of the key, because the programs write it.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._roots = list(roots)
        self.written: set[Place] = set()
        self._last: _Walk | None = None
        self._changed: list[str] = []

    def key(self) -> Any:
        """It can be compared and hashed."""
        last = self._last
        if last is not None and last.is_current():
            return last.key
        self._last = walk = _Walk(self._roots, self.written)
        if last is not None and last.key != walk.key:
            self._changed = [entry[0] for place, entry in walk.named.items() if last.named.get(place) != entry]
        return walk.key

    def warn_of_many(self, kept: Iterable[tuple[Any, Any]], signature: Any) -> None:
        """Warn once where steps were made again and again for arguments of one kind, with what has changed last.

        :param kept: the keys of the steps, each a signature of arguments and a key of this class.
        """
        if sum(known == signature for known, _ in kept) == _MANY and self._changed:
            warn_user(
                f"a step was compiled or captured {_MANY} times for arguments of one kind, because what the programs"
                f" can read changed: {', '.join(self._changed[:3])}. Make it a tensor, such as a buffer, if they read"
                " it; keep it outside of their modules if they do not."
            )

    def ignore_written(self, run: Callable[[], Any]) -> Any:
        """Run the programs, and leave out of the key what they write themselves, be it a tensor or a container.

        They keep it to be looked at (a loss, the plates of an automatic guide), and it is another one after every run.
        A number that they count up is part of the key: it decides what the next run does.
        """
        before = _Walk(self._roots, set()).parts
        result = run()
        after = _Walk(self._roots, set()).parts
        written = {place for place, part in after.items() if before.get(place) != part}
        if not written <= self.written:
            self.written |= written
            self._last = None
        return result


class _Walk:
    """All that can be reached from some roots, as it is now.

    :ivar key: of its values.
    :ivar parts: of the key, by place; of what is no plain value, and has no places of its own.
    :ivar named: parts of the key with names for people, by place.
    """

    def __init__(self, roots: list[Any], written: set[Place]) -> None:
        self.parts: dict[Place, Any] = {}
        self.named: dict[Place, tuple[str, Any]] = {}
        self._written = written
        self._met: dict[int, Any] = {}  # holds what it has met, so that no other object takes the number
        self._tables: list[dict[Any, Any]] = []
        self._lists: list[list[Any] | deque[Any]] = []
        self._sets: list[set[Any]] = []
        self._cells: list[Any] = []
        # Names in objects that have more of them than are of interest: global variables and attributes of classes.
        self._owners: list[Any] = []
        self._names: list[str] = []
        self.key = _Key(tuple([self._part(root, 0) for root in roots]))
        self._sized = [*self._tables, *self._lists, *self._sets]
        self._sizes = [*map(len, self._sized)]
        self._tables, self._sets = [*filter(len, self._tables)], [*filter(len, self._sets)]
        self._contents_of_sets = [*map(frozenset, self._sets)]
        self._values = [*self._present_values()]

    def is_current(self) -> bool:
        """Whether a walk would find the same objects; a key may be the same also where it would not."""
        return (
            [*map(len, self._sized)] == self._sizes
            and all(map(operator.is_, self._present_values(), self._values))
            and all(map(operator.eq, self._sets, self._contents_of_sets))
        )

    def _present_values(self) -> Iterator[Any]:
        return chain(
            chain.from_iterable(self._tables),
            chain.from_iterable(map(dict.values, self._tables)),
            chain.from_iterable(self._lists),
            map(_content, self._cells),
            map(_named, self._owners, self._names),
        )

    def _part(self, value: Any, depth: int) -> Any:
        """What a value adds to the key."""
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if isinstance(value, enum.Enum):
            return _Same(value)
        if isinstance(value, tuple) and (kind is tuple or hasattr(value, "_fields")):
            return kind, tuple([self._part(x, depth + 1) for x in value])
        if id(value) in self._met or depth > _DEEPEST:
            return _Same(value)
        self._met[id(value)] = value
        if isinstance(value, _CONTAINERS):
            contents = self._contents(value, depth) if len(value) <= _LARGEST else (_Same(value), len(value))
            return kind, contents, (self._of_object(value, depth) if _has_own_attributes(value) else ())
        if isinstance(value, functools.partial):
            return kind, tuple([self._part(x, depth + 1) for x in (value.func, value.args, value.keywords)])
        if isinstance(value, types.MethodType):
            return kind, self._part(value.__self__, depth + 1), self._part(value.__func__, depth + 1)
        if isinstance(value, types.FunctionType):
            return self._of_function(value, depth)
        if isinstance(value, type) and not issubclass(value, enum.Enum):
            return _Same(value), self._of_class(value, depth)
        if _has_own_attributes(value):
            return _Same(value), self._of_object(value, depth)
        return _Same(value)

    def _of_object(self, value: Any, depth: int) -> Any:
        return self._of_attributes(value, depth), self._of_slots(value, depth), self._of_class(type(value), depth)

    def _contents(self, container: Any, depth: int) -> Any:
        if isinstance(container, dict):
            self._tables.append(container)
            return tuple([(_hashable(name), self._part(value, depth + 1)) for name, value in container.items()])
        if isinstance(container, (list, deque)):
            self._lists.append(container)
            return tuple([self._part(value, depth + 1) for value in container])
        if isinstance(container, set):
            self._sets.append(container)
        return frozenset(container)

    def _of_attributes(self, owner: Any, depth: int) -> Any:
        table = getattr(owner, "__dict__", None)
        if table is None:
            return ()
        self._tables.append(table)
        parts = []
        for name, value in table.items():
            if isinstance(owner, Transform) and name.startswith(_REMEMBERED):
                continue
            if name in _OF_MODULES:
                parts.append((name, self._part(value, depth + 1)))
            else:
                parts.append((name, self._at((id(table), name), value, depth, f"{type(owner).__name__}.{name}")))
        return tuple(parts)

    def _of_slots(self, owner: Any, depth: int) -> Any:
        names = [name for name in _slots(type(owner)) if hasattr(owner, name)]
        return self._of_names(owner, names, depth, f"{type(owner).__name__}.")

    def _of_names(self, owner: Any, names: Iterable[str], depth: int, prefix: str = "") -> Any:
        """Of an object, or the global variables of a function, of which not all names are of interest."""
        parts = []
        for name in names:
            self._owners.append(owner)
            self._names.append(name)
            parts.append((name, self._at((id(owner), name), _named(owner, name), depth, prefix + name)))
        return tuple(parts)

    def _at(self, place: Place, value: Any, depth: int, name: str) -> Any:
        """The part of what a place holds, unless the programs write it."""
        if type(value) in _PLAIN:
            self.named[place] = name, (type(value), value)
            return type(value), value
        if place in self._written:
            return "written"
        part = self._part(value, depth + 1)
        is_inner = isinstance(value, (types.FunctionType, types.MethodType, type)) or (
            _has_own_attributes(value) and not isinstance(value, _CONTAINERS)
        )
        self.parts[place] = _Same(value) if is_inner else part
        self.named[place] = name, self.parts[place]
        return part

    def _of_function(self, function: types.FunctionType, depth: int) -> Any:
        cells = function.__closure__ or ()
        self._cells.extend(cells)
        name = f"a variable around {function.__name__}"
        inside = [self._at((id(cell), None), _content(cell), depth, name) for cell in cells]
        defaults = self._part((function.__defaults__, function.__kwdefaults__), depth + 1)
        return _Same(function), tuple(inside), defaults, self._of_globals(function, depth)

    def _of_globals(self, function: types.FunctionType, depth: int) -> Any:
        if _package(function) in _LIBRARIES | _OURS:
            return ()
        table, (read, attributes) = function.__globals__, _names_read_by(function)
        names = [name for name in read if name in table]
        modules = [table[name] for name in names if isinstance(table[name], types.ModuleType)]
        inside = [
            self._of_names(vars(module), sorted(attributes & vars(module).keys()), depth, f"{module.__name__}.")
            for module in modules
            if _is_users(module)
        ]
        own = [name for name in names if not isinstance(table[name], types.ModuleType)]
        return self._of_names(table, own, depth), tuple(inside)

    def _of_class(self, kind: type, depth: int) -> Any:
        """What its methods read, and the values and containers among its attributes."""
        parts = []
        for owner in kind.__mro__:
            for name, value in () if _package(owner) in _LIBRARIES | _OURS else [*vars(owner).items()]:
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if isinstance(function, types.FunctionType):
                    parts.append((name, self._part(function, depth + 1)))
                elif not name.startswith("__") and isinstance(value, (*_PLAIN, *_CONTAINERS, tuple, enum.Enum)):
                    parts.extend(self._of_names(owner, [name], depth, f"{owner.__name__}."))
        return tuple(parts)


class _Key:
    """A key whose hash is known: it is large, and mostly compared with itself."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: Any) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Key) and self._parts == other._parts)


class _Same:
    """An object that is equal to itself alone, and that a key does not keep alive."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._value: Callable[[], Any] = weakref.ref(value)
        except TypeError:  # of few kinds, all of them small
            self._value = lambda: value

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        value = self._value()
        return isinstance(other, _Same) and value is not None and value is other._value()


_READ: weakref.WeakKeyDictionary[types.FunctionType, tuple[tuple[str, ...], Set[str]]] = weakref.WeakKeyDictionary()


def _names_read_by(function: types.FunctionType) -> tuple[tuple[str, ...], Set[str]]:
    """The global variables and the attributes that a function reads; not those of functions inside of it."""
    if function not in _READ:
        try:
            found = inspect.getclosurevars(function)
        except (TypeError, ValueError):  # a cell that is empty as yet
            return (), frozenset()
        _READ[function] = tuple(found.globals), found.unbound
    return _READ[function]


def _has_own_attributes(value: Any) -> bool:
    if isinstance(value, (nn.Module, *_NAMESPACES)):
        return True
    if isinstance(value, (type, types.ModuleType, Tensor)) or _package(type(value)) in _LIBRARIES:
        return False
    table = getattr(value, "__dict__", None)
    return bool(_slots(type(value))) if table is None else type(table) is dict and len(table) <= _LARGEST


def _slots(kind: type) -> list[str]:
    """The attributes that the user's classes hold beside ``__dict__``."""
    return [
        name
        for owner in kind.__mro__
        if _package(owner) not in _LIBRARIES
        for name, member in vars(owner).items()
        if isinstance(member, types.MemberDescriptorType)
    ]


def _is_users(module: types.ModuleType) -> bool:
    return module.__name__.partition(".")[0] not in _LIBRARIES | _OURS


def _package(value: Any) -> str:
    return (getattr(value, "__module__", None) or "").partition(".")[0]


def _named(owner: Any, name: str) -> Any:
    return owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _hashable(name: Any) -> Any:
    return name if type(name) in _PLAIN else _Same(name)
