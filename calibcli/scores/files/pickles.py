"""Bound the work that a pickle asks for, by following its opcodes before anything interprets them.

An object that stands in a tuple twice is written once, so that a few hundred bytes describe a tuple of 2^100 numbers;
hashing or printing it takes for ever. Here the opcodes are followed without making an object: what each container would
hold if nothing were shared is added up.
"""

from __future__ import annotations

import contextlib
import io
import math
import pickletools
from collections.abc import Iterator
from typing import IO

from calibcli.core.errors import InputError

MOST = 64 << 20  # longest pickle, in bytes
OPCODES = 5_000_000
OTHER = 8  # opcodes that one that is not a text, a number or a memo entry counts for, as it takes longer
SPREAD = 10_000_000  # most values in a container when nothing is shared
PICKLES = 5  # of a file in the format before torch 1.6: magic number, version, system, objects, keys of the storages
LEAF = 0
TORCH_OWN = ("collections.OrderedDict", "collections.Counter", "__builtin__.set", "builtins.set", "builtins.complex")
STACKED = "STACK_GLOBAL "  # before a name put together from texts, which torch does not write
VALUES = {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE"}
PUTS = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}
ADDING = {"APPEND": 1, "SETITEM": 2, "BUILD": 1}
TO_MARK = {"APPENDS", "SETITEMS", "ADDITEMS"}
MADE_OF_MARK = {"TUPLE", "LIST", "DICT", "FROZENSET", "INST", "OBJ"}


def is_pickle(head: bytes) -> bool:
    """Return whether a file starts as pickles do: the opcode PROTO, a protocol from 2 to 5, and another opcode."""
    if len(head) < 3 or head[0] != 0x80 or head[1] not in range(2, 6):
        return False
    return chr(head[2]) in {opcode.code for opcode in pickletools.opcodes}


def names(stream: IO[bytes], where: str, most: int = MOST) -> set[str]:
    """Return the globals that the pickles in a stream name, after checking how much work they ask for.

    At most `most` bytes are followed.

    Raises:
        InputError: more opcodes than `OPCODES`, or a container of more than `SPREAD` values.
    """
    globals_named: set[str] = set()
    data, offset, total = stream.read(most), 0, 0
    for _ in range(PICKLES):
        walk = PickleScanner(data, offset, total, most)
        walk.follow(where)
        offset, total = walk.at, walk.total
        globals_named |= walk.globals
        if not walk.ended:
            break
    return globals_named


def only_tensors(globals_named: set[str]) -> bool:
    """Return whether a pickle names only what torch builds tensors from."""
    return all(name.startswith("torch.") or name in TORCH_OWN for name in globals_named)


class PickleScanner:
    """Follows the stack, the memo and the containers of one pickle. Containers are numbered; 0 is anything else."""

    def __init__(self, data: bytes, at: int, total: int, most: int = MOST) -> None:
        self.stream, self.most, self.total, self.ended = io.BytesIO(data), most, total, False
        self.stream.seek(at)
        self.globals: set[str] = set()
        self.stack: list[int] = []
        self.marks: list[int] = []
        self.memo: dict[int, int] = {}
        self.texts = ("", "")
        self.leaves: list[int] = [0]
        self.inner: list[list[int]] = [[]]

    def follow(self, where: str) -> None:
        """Follow the opcodes up to STOP, or to the first that is invalid."""
        with contextlib.suppress(ValueError, IndexError, KeyError, OverflowError, MemoryError):  # reading it ends there
            for code, argument, _ in pickletools.genops(self.stream):
                self.total += 1 if code.name in VALUES or code.name in PUTS else OTHER
                if self.total > OPCODES:
                    break
                self.ended = code.name == "STOP"
                self._take(code, argument)
        self.at = self.stream.tell()
        if self.total > OPCODES or self.at >= self.most or self._spread() > SPREAD:
            problem = f"{where} would be unpickled into too many objects"
            raise InputError(problem, "save tensors alone, and names as short lists")

    def _take(self, code: pickletools.OpcodeInfo, argument: object) -> None:
        name, stack = code.name, self.stack
        if name in VALUES:
            stack.append(LEAF)
            self.texts = (self.texts[1], argument) if isinstance(argument, str) else self.texts
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in TO_MARK or name in MADE_OF_MARK or name == "POP_MARK":
            mark = self.marks.pop()
            items, stack[mark:] = stack[mark:], []
            if name in TO_MARK:
                self._add(stack[-1], items)
            elif name != "POP_MARK":
                self._push(items)
        elif name in ADDING:
            items = [stack.pop() for _ in range(ADDING[name])]
            self._add(stack[-1], items)
        elif name.endswith("PUT"):
            self.memo[argument if isinstance(argument, int) else 0] = stack[-1]
        elif "GET" in name:
            stack.append(self.memo[argument] if isinstance(argument, int) else LEAF)
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "POP" and self.marks and self.marks[-1] == len(stack):
            self.marks.pop()
        else:
            self._other(code, argument)

    def _other(self, code: pickletools.OpcodeInfo, argument: object) -> None:
        items = [self.stack.pop() for _ in code.stack_before]
        if items and code.stack_after:
            self._push(items)
        else:
            self.stack.extend([LEAF] * len(code.stack_after) if code.name[0:5] != "EMPTY" else [self._new()])
        if code.name == "GLOBAL":
            self.globals.add(str(argument).replace(" ", "."))
        elif code.name == "STACK_GLOBAL":
            self.globals.add(STACKED + ".".join(self.texts))

    def _new(self) -> int:
        self.leaves.append(0)
        self.inner.append([])
        return len(self.leaves) - 1

    def _push(self, items: list[int]) -> None:
        container = self._new()
        self._add(container, items)
        self.stack.append(container)

    def _add(self, target: int, items: list[int]) -> None:
        inside = [item for item in items if item != LEAF]
        self.leaves[target] += len(items) - len(inside) + 1
        self.inner[target] += inside

    def _spread(self) -> float:
        """Return the number of values in the largest container if nothing were shared. Cycles are followed once."""
        size: list[float] = [-1.0] * len(self.inner)
        size[LEAF] = 0.0
        open_now = 2.0 * SPREAD  # stands for a container that is being added up
        for first in range(1, len(self.inner)):
            waiting: list[tuple[int, Iterator[int]]] = [(first, iter(self.inner[first]))] if size[first] < 0 else []
            while waiting:
                node, children = waiting[-1]
                size[node] = open_now
                child = next((c for c in children if size[c] < 0), LEAF)
                if child != LEAF:
                    waiting.append((child, iter(self.inner[child])))
                    continue
                inside = math.fsum(0.0 if size[c] == open_now else size[c] for c in self.inner[node])
                size[node] = min(self.leaves[node] + inside, SPREAD + 1.0)
                waiting.pop()
        return max(size)
