"""Logs of Inspect, zip archives with a JSON file of each sample: multiple-choice tasks with log-probabilities.

The format is that of Inspect (UK AI Security Institute 2024). Its members are compressed with Zstandard (method 93),
which needs the extra `evals`; those of older versions with zlib.

>>> import json, zipfile
>>> logprobs = {"content": [{"token": "B", "logprob": -0.1, "top_logprobs": [{"token": "A", "logprob": -2.4}]}]}
>>> sample = {"id": 1, "choices": ["no", "yes"], "target": "B", "output": {"choices": [{"logprobs": logprobs}]}}
>>> with zipfile.ZipFile(folder / "log.eval", "w") as log:
...     log.writestr("samples/1_epoch_1.json", json.dumps(sample))
>>> calibcli.read(folder / "log.eval").logits.tolist()
[[-2.4, -0.1]]
"""

from __future__ import annotations

import itertools
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

from calibcli.core.errors import InputError, refusing
from calibcli.core.memory import memory_limit
from calibcli.scores.files import locations
from calibcli.scores.files.arrays import FileContents
from calibcli.scores.files.evals import inspect_ai
from calibcli.scores.files.formats.numpy import DAMAGED, data_offset, distinct_members
from calibcli.scores.files.source import Source, refuse_large
from calibcli.scores.files.text_tables import json_of

SUFFIXES = (".eval",)
FORMAT = "eval, log of Inspect"
METHODS = {zipfile.ZIP_STORED: "", zipfile.ZIP_DEFLATED: "deflate", 93: "zstd"}
MEMBERS = 1_000_000
LONGEST = 64 << 20  # bytes of a member
EXPANSION = 16  # bytes of memory for each byte of a member, roughly, in the worst case
FIRST = (b"_journal/", b"samples/", b"header.json", b"summaries.json", b"reductions.json")
AGAIN = "copy or write the log again"


def signature(head: bytes, size: int) -> bool:
    """Return whether this is a zip archive whose first member belongs to a log."""
    return head.startswith(b"PK\x03\x04") and head[30:].startswith(FIRST)


def read(source: Source) -> FileContents:
    """Read the samples, one at a time.

    Raises:
        InputError: damaged, larger than memory, no samples, or samples that cannot be measured.
    """
    with refusing(DAMAGED, f"{source.name} is not a readable log of Inspect (a zip archive)", AGAIN):
        members = zipfile.ZipFile(source.reader()).infolist()
    distinct_members(members, source)
    samples = sorted((m for m in members if m.filename.startswith("samples/")), key=lambda m: _natural(m.filename))
    if not samples or len(members) > MEMBERS:
        problem = f"{source.name} holds {len(samples):,} samples" if samples else f"{source.name} holds no samples"
        raise InputError(problem, "was the evaluation run to its end, with its samples logged?")
    total = sum(member.file_size for member in samples)
    refuse_large(total, f"the samples of {source.name} take {total / 1e9:.3g} GB when decoded", "log fewer of them")
    ends = sorted((member.header_offset, member.header_offset + member.compress_size) for member in members)
    if any(end > start for (_, end), (start, _) in itertools.pairwise(ends)):
        raise InputError(f"the members of {source.name} overlap", AGAIN)
    by_name = {member.filename: member for member in members}
    header = next((by_name[name] for name in ("header.json", "_journal/start.json") if name in by_name), None)
    log_header = _object(source, header) if header else {}
    return inspect_ai.contents(FORMAT, log_header, (_object(source, member) for member in samples), source)


def _object(source: Source, member: zipfile.ZipInfo) -> Mapping[str, Any]:
    """Return the JSON object in a member.

    Raises:
        InputError: the member is damaged or too large, or is not a JSON object.
    """
    name = f"'{member.filename[:60]}' in {source.name}"
    most = min(LONGEST, memory_limit() // EXPANSION)
    if member.file_size > most:
        raise InputError(f"{name} takes {member.file_size / 1e6:.3g} MB, more than {most / 1e6:.3g} MB", AGAIN)
    method = METHODS.get(member.compress_type)
    if method is None or member.flag_bits & 1:
        raise InputError(f"{name} is compressed by method {member.compress_type} or encrypted", "write the log again")
    with refusing((struct.error, ValueError), f"{name} is damaged", AGAIN):
        data = source.pread(member.compress_size, data_offset(source, member))
    if method:
        data = b"".join(locations.unpacked(iter([data]), method, member.file_size, name))
    if len(data) != member.file_size or zlib.crc32(data) != member.CRC:
        raise InputError(f"{name} is damaged: its bytes do not have the checksum that the archive gives", AGAIN)
    with refusing((ValueError, RecursionError, TypeError), f"{name} is not a JSON object", AGAIN):
        members: dict[str, Any] = {**json_of(data, name)}
    return members


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers within a name by their size."""
    return [(int(part[:300]), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
