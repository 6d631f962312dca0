"""Free memory of the host: what the machine has, and what containers and batch systems allow.

The memory of a CUDA device is in `device.free_bytes`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

MOST_DECODED = 8 << 30  # bytes that decoded contents (of compressed or text files) may take at most
UNIFIED = ("memory.max", "memory.current", "inactive_file")  # limit, usage and cache of control groups, version 2
UNLIMITED = 1 << 60  # bytes from which a limit is none: version 1 writes the largest number of whole pages
DIVIDED = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")  # version 1


_most: int | None = None  # bytes that this process may take, if the user limits them


def limit_memory(most: int | None) -> None:
    """Let this process take so many bytes, its interpreter and libraries included; None: all that is free."""
    global _most
    _most = most


def taken_memory() -> int:
    """Return the bytes of memory that this process takes; 0 if the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def memory_limit() -> int:
    """Return the bytes that decoded contents may take: half of the free memory, at most `MOST_DECODED`."""
    return min(2 * MOST_DECODED, free_memory()) // 2


def free_memory(root: str = "/") -> int:
    """Return the bytes of memory that this process can still take without being killed or swapping.

    This is the minimum of what the kernel calls available (half of the memory if it does not say, 4 GiB if even that is
    unknown), of limit - usage + file cache in the control group of this process and in all groups above it, and of
    what `ulimit` leaves. Containers and batch systems set such limits, and kill processes that exceed them.

    Args:
        root: the folder that /proc and /sys lie in.
    """
    free = [_available(Path(root))]
    for folder, limit, (_, usage, cached) in _limits(root):
        with contextlib.suppress(OSError, ValueError):
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            free.append(limit - int((folder / usage).read_text()) + int(stat.get(cached, 0)))
    if _most is not None:
        free.append(_most - taken_memory())
    return max(0, min([*free, *_left_by_ulimit()]))


def _left_by_ulimit() -> list[int]:
    """Return the bytes that `ulimit -v` and `ulimit -d` leave, where they are set: beyond, an allocation fails."""
    left: list[int] = []
    with contextlib.suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        pages = [int(count) for count in Path("/proc/self/statm").read_text().split()]
        for limit, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
            most = resource.getrlimit(limit)[0]
            left += [most - used * resource.getpagesize()] if most != resource.RLIM_INFINITY else []
    return left


def trim() -> None:
    """Return freed memory to the system: glibc keeps free blocks that lie between blocks in use."""
    with contextlib.suppress(OSError, TypeError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _available(root: Path) -> int:
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30


@cache  # limits are set before a process starts; the usage is read each time
def _limits(root: str) -> list[tuple[Path, int, tuple[str, str, str]]]:
    """List the control groups with a limit: folder, limit in bytes, and the names of limit, usage and cache."""
    limited = []
    for folder, names in _groups(Path(root)):
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            if (limit := int((folder / names[0]).read_text())) < UNLIMITED:
                limited.append((folder, limit, names))
    return limited


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield the folders of this process's control group and of those above it, with `UNIFIED` or `DIVIDED`.

    Inside a container, its own group may be the root although the path is that seen from outside, so some of the
    folders may not exist.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = ["0::/", "1:memory:/"]
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        mounts = ["sys/fs/cgroup/memory"] if controllers else ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        group = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            for part in (group, *group.parents) if ".." not in group.parts else (PurePosixPath(),):
                yield root / mount / part, DIVIDED if controllers else UNIFIED
