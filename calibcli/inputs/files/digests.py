"""Fingerprints of the files that were read, for the provenance of a result."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence

from calibcli.inputs.files.source import Source


class Digests:
    """Fingerprints of files, taken by a thread while other work goes on; given up when that work fails.

    What is no file has a path alone.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources, self.stop = sources, threading.Event()
        self.found: list[dict[str, str]] = []
        self.failed: BaseException | None = None
        self.thread = threading.Thread(target=self._work)
        begin = self.thread.start if any(isinstance(source, Source) for source in sources) else self._work
        begin()

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self._wait()

    def _wait(self) -> None:
        if self.thread.is_alive():
            self.thread.join()

    def _work(self) -> None:
        try:
            for source in self.sources:
                digest = {"sha256": source.sha256(self.stop)} if isinstance(source, Source) else {}
                self.found.append({"path": source.path, **digest})
        except BaseException as error:  # raised where the digests are asked for
            self.failed = error

    def files(self) -> list[dict[str, str]]:
        """Path and digest of each file, when all are done."""
        self._wait()
        if self.failed is not None:
            raise self.failed
        return self.found


def fingerprint(files: Sequence[Mapping[str, str]]) -> str:
    """One of several files; "" of what is none."""
    digests = [file["sha256"] for file in files if "sha256" in file]
    if not digests:
        return ""
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
