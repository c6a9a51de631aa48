"""Reading a pickle without unpickling: a small machine that only ever builds inert records.

Python's own unpickler imports names and calls them. This one walks the opcodes, knows the names it is told
to expect, and puts a `Node` where the file wanted a call: there is no path from the stream to a callable.
Whatever it does not know is refused by name. Sizes are checked before memory is taken.
"""

from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from smoothrl.errors import UserError

MAX_STREAM = 32 << 20
"""Bytes of one pickle, and of all that its encoded texts unfold to; agents need a few thousand, the tensors
lie outside it."""
MAX_OPCODES = 200_000
MAX_NODES_OF_ARRAY = 1 << 26
"""Elements of one array."""
MAX_DIMENSIONS = 8

NUMPY_NAMES = frozenset(
    f"numpy.{core}.{name}"
    for core in ("core", "_core")
    for name in ("multiarray._reconstruct", "multiarray.scalar", "numeric._frombuffer")
) | {
    "numpy.dtype",
    "numpy.ndarray",
    "_codecs.encode",
    "numpy.random._pickle.__randomstate_ctor",
    "numpy.random._pickle.__generator_ctor",
    "numpy.random._pickle.__bit_generator_ctor",
    "numpy.random._pcg64.PCG64",
    "numpy.random._mt19937.MT19937",
    "numpy.random.bit_generator.SeedSequence",
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
}
"""What arrays, scalars and generator states of NumPy 1 and 2 are pickled as."""

_DTYPES = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})


class Refusal(UserError):
    """The stream holds something that is not expected of it."""


@dataclass(frozen=True)
class Name:
    """A name the file wanted to import. Nothing is imported."""

    path: str


@dataclass(eq=False)
class Node:
    """An object of the file: the name of its maker, the arguments, and what was set on it afterwards."""

    path: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)
    """Entries set on a mapping such as an OrderedDict."""

    def attributes(self) -> dict[str, Any]:
        """The instance dictionary, where it is one."""
        return self.state if isinstance(self.state, dict) else {}


def brief(value: Any) -> str:
    """A word on an untrusted value that cannot be long, deep or slow."""
    if isinstance(value, (Name, Node)):
        return value.path[:80]
    if isinstance(value, str):
        return repr(value[:60])
    return type(value).__name__


class _Mark:
    pass


_MARK = _Mark()
Persistent = Callable[[Any], Any]


class _Machine:
    """The stack machine; one method a group of opcodes."""

    def __init__(self, names: frozenset[str], persistent: Persistent | None) -> None:
        self.names, self.persistent = names, persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.encoded = 0

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise Refusal("the pickle takes more from its stack than there is")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack or self.stack[-1] is _MARK:
            raise Refusal("the pickle takes more from its stack than there is")
        return self.stack[-1]

    def to_mark(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                items = self.stack[at + 1 :]
                del self.stack[at:]
                return items
        raise Refusal("the pickle has no mark where it needs one")

    def name(self, path: str) -> None:
        if path not in self.names:
            raise Refusal(f"the file asks for {path[:120]!r}, which an agent has no need of; not opened")
        self.stack.append(Name(path))

    def stack_global(self) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise Refusal("the pickle names something by an object that is not text")
        self.name(f"{module}.{name}")

    def tuple_of(self, count: int) -> None:
        items = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def set_items(self, pairs: list[Any]) -> None:
        target = self.top()
        into = target.items if isinstance(target, Node) else target
        if not isinstance(into, dict) or len(pairs) % 2:
            raise Refusal(f"the pickle sets items on {brief(target)}")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            small = isinstance(key, int) and abs(key) < 1 << 31
            if not small and not isinstance(key, (str, bytes, type(None))):
                raise Refusal(f"the pickle uses {brief(key)} as a key")
            into[key] = value

    def append(self, items: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise Refusal(f"the pickle appends to {brief(target)}")
        target.extend(items)

    def make(self, args: Any, maker: Any) -> None:
        if not isinstance(maker, Name) or not isinstance(args, tuple):
            raise Refusal(f"the pickle calls {brief(maker)}")
        self.stack.append(self.bytes_of(args) if maker.path == "_codecs.encode" else Node(maker.path, args))

    def bytes_of(self, args: tuple[Any, ...]) -> bytes:
        """Bytes the way protocol 2 has them, as Latin-1 text. A text kept once can be encoded many times."""
        text = args[0] if args else None
        codec = args[1] if len(args) == 2 else None
        if not isinstance(text, str) or codec not in ("latin1", "latin-1"):
            raise Refusal("the pickle encodes something other than bytes as text")
        self.encoded += len(text)
        if self.encoded > MAX_STREAM:
            raise Refusal(f"the pickle unfolds to more than {MAX_STREAM:,} bytes")
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError as error:
            raise Refusal("the pickle holds bytes that are none") from error

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if not isinstance(target, Node) or target.state is not None:
            raise Refusal(f"the pickle sets the state of {brief(target)}")
        target.state = state

    def persist(self) -> None:
        if self.persistent is None:
            raise Refusal("the pickle refers to something outside itself")
        self.stack.append(self.persistent(self.pop()))

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise Refusal("the pickle recalls what it never kept")
        self.stack.append(self.memo[index])

    def keep(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self.top()


_Handler = Callable[[_Machine, Any], None]


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _no_op(machine: _Machine, value: Any) -> None:
    pass


_PUSHED = (
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)

HANDLERS: Mapping[str, _Handler] = {
    **dict.fromkeys(_PUSHED, _push),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _no_op),
    "NONE": lambda m, _: m.stack.append(None),
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "MARK": lambda m, _: m.stack.append(_MARK),
    "POP": lambda m, _: _drop(m),
    "POP_MARK": lambda m, _: _drop_marked(m),
    "DUP": lambda m, _: m.stack.append(m.top()),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.to_mark())),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "SETITEM": lambda m, _: m.set_items([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m, _: m.set_items(m.to_mark()),
    "APPEND": lambda m, _: m.append([m.pop()]),
    "APPENDS": lambda m, _: m.append(m.to_mark()),
    "BINGET": lambda m, arg: m.get(arg),
    "LONG_BINGET": lambda m, arg: m.get(arg),
    "BINPUT": lambda m, arg: m.keep(arg),
    "LONG_BINPUT": lambda m, arg: m.keep(arg),
    "MEMOIZE": lambda m, _: m.keep(None),
    "GLOBAL": lambda m, arg: m.name(arg.replace(" ", ".", 1)),
    "STACK_GLOBAL": lambda m, _: m.stack_global(),
    "REDUCE": lambda m, _: m.make(m.pop(), m.pop()),
    "NEWOBJ": lambda m, _: m.make(m.pop(), m.pop()),
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.persist(),
}
"""Every opcode that is understood; all others are refused by name."""


def _drop(machine: _Machine) -> None:
    machine.pop()


def _drop_marked(machine: _Machine) -> None:
    machine.to_mark()


class _Bounded:
    """A stream of which no more than MAX_STREAM bytes are taken, however many a pickle in it claims."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.left = stream, MAX_STREAM

    def read(self, count: int) -> bytes:
        self.left -= count
        if self.left < 0:
            raise Refusal(f"the pickle claims more than the {MAX_STREAM:,} bytes an agent may need")
        return self.stream.read(count)

    def readline(self) -> bytes:
        line = self.stream.readline(self.left + 1)
        self.left -= len(line)
        if self.left < 0:
            raise Refusal(f"the pickle claims more than the {MAX_STREAM:,} bytes an agent may need")
        return line


def read_pickle(data: bytes | IO[bytes], names: frozenset[str], persistent: Persistent | None = None) -> Any:
    """The object a pickle describes, as plain values and `Node` records; nothing in it is called.

    A stream is left behind the end of its first pickle.
    """
    if isinstance(data, bytes) and len(data) > MAX_STREAM:
        raise Refusal(f"the pickle has {len(data):,} bytes, more than the {MAX_STREAM:,} an agent may need")
    source = _Bounded(io.BytesIO(data) if isinstance(data, bytes) else data)
    machine = _Machine(names, persistent)
    count = 0
    try:
        for opcode, arg, _ in pickletools.genops(cast(IO[bytes], source)):
            count += 1
            if count > MAX_OPCODES:
                raise Refusal(f"the pickle has more than {MAX_OPCODES:,} instructions")
            handler = HANDLERS.get(opcode.name)
            if handler is None:
                raise Refusal(f"the pickle uses instruction {opcode.name}, which an agent has no need of")
            handler(machine, arg)
    except Refusal:
        raise
    except (ValueError, KeyError, IndexError, OverflowError, UnicodeError) as error:
        raise Refusal(f"no pickle, or a truncated one ({type(error).__name__})") from error
    if len(machine.stack) != 1:
        raise Refusal("the pickle ends in the middle of something")
    return machine.pop()


# ---------------------------------------------------------------------------------------- arrays


def array(value: Any, what: str = "array") -> npt.NDArray[Any]:
    """The NumPy array (or scalar) a node describes, with its size checked first."""
    if isinstance(value, (bool, int, float)):
        return _number(value, what)
    if not isinstance(value, Node):
        raise Refusal(f"{what} is {brief(value)}, not an array")
    tail = value.path.rsplit(".", 1)[-1]
    state = value.state
    if tail == "_reconstruct" and isinstance(state, tuple) and len(state) == 5:
        _, shape, kind, fortran, raw = state
        return _from_bytes(raw, kind, shape, "F" if fortran is True else "C", what)
    if tail == "_frombuffer" and len(value.args) == 4:
        raw, kind, shape, order = value.args
        return _from_bytes(raw, kind, shape, "F" if order == "F" else "C", what)
    if tail == "scalar" and len(value.args) == 2:
        return _from_bytes(value.args[1], value.args[0], (), "C", what)
    raise Refusal(f"{what} is {brief(value)}, not an array")


def _number(value: float, what: str) -> npt.NDArray[Any]:
    try:
        return np.asarray(float(value))
    except OverflowError as error:
        raise Refusal(f"{what} is a number out of range") from error


def _from_bytes(raw: Any, kind: Any, shape: Any, order: Any, what: str) -> npt.NDArray[Any]:
    dtype = _dtype(kind, what)
    if not isinstance(raw, (bytes, bytearray)):
        raise Refusal(f"{what} does not hold plain bytes but {brief(raw)}")
    count = checked_shape(shape, what)
    if count * dtype.itemsize != len(raw):
        raise Refusal(f"{what} claims {count} numbers and holds {len(raw)} bytes")
    return np.frombuffer(bytes(raw), dtype).reshape(shape, order=order).copy()


def checked_shape(shape: Any, what: str) -> int:
    """The number of elements of a shape that is one, and small enough."""
    if not isinstance(shape, (tuple, list)) or len(shape) > MAX_DIMENSIONS:
        raise Refusal(f"the shape of {what} is none")
    if any(type(n) is not int or n < 0 or n > MAX_NODES_OF_ARRAY for n in shape):
        raise Refusal(f"the shape of {what} is none")
    count = math.prod(shape)
    if count > MAX_NODES_OF_ARRAY:
        raise Refusal(f"{what} has {count:,} numbers, more than the {MAX_NODES_OF_ARRAY:,} an agent may need")
    return count


def _dtype(kind: Any, what: str) -> np.dtype[Any]:
    code = kind.args[0] if isinstance(kind, Node) and kind.path == "numpy.dtype" and kind.args else None
    if not isinstance(code, str) or code not in _DTYPES:
        raise Refusal(f"the numbers of {what} are of a type that is not read ({brief(code)})")
    assert isinstance(kind, Node)
    state = kind.state
    swapped = isinstance(state, tuple) and len(state) > 1 and state[1] == ">"
    return np.dtype((">" if swapped else "<") + code)
