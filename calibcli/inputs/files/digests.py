"""Fingerprints of the files that were read, for the provenance of a result."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from calibcli.inputs.files.source import Source


class Digests:
    """Fingerprints of files, taken by a thread while other work goes on; given up when that work fails.

    What is no file has a path alone.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.stop = threading.Event()
        self.pool = ThreadPoolExecutor(1)
        self.found = [
            (source.path, self.pool.submit(source.sha256, self.stop) if isinstance(source, Source) else None)
            for source in sources
        ]

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self.pool.shutdown()

    def files(self) -> list[dict[str, str]]:
        """Path and digest of each file, when all are done."""
        return [{"path": path, **({"sha256": digest.result()} if digest else {})} for path, digest in self.found]


def fingerprint(files: Sequence[Mapping[str, str]]) -> str:
    """One of several files; "" of what is none."""
    digests = [file["sha256"] for file in files if "sha256" in file]
    if not digests:
        return ""
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
