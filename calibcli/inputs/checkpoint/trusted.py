"""Containers that hold code: refused unless the user trusts the file. Nothing here runs before that is checked."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from calibcli.errors import InputError

FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ImportError, EOFError, OSError)


def refusal(path: Path, what: str) -> InputError:
    """The error for a file that holds code."""
    return InputError(
        f"{path} holds {what}; nothing was executed",
        "save its state dict (torch.save(model.state_dict(), ...)) and pass --arch, or pass --trust if you trust it",
    )


def named_globals(path: Path) -> str:
    """` (posix.system, ...)`: the names a pickle would import, read without running it."""
    found: list[str] = []
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                data = next(file.read(name) for name in file.namelist() if name.endswith("data.pkl"))
        else:
            data = path.read_bytes()[: 1 << 20]
        strings: list[str] = []
        for code, argument, _ in pickletools.genops(data):
            if code.name == "GLOBAL":
                found.append(str(argument).replace(" ", "."))
            elif code.name == "STACK_GLOBAL" and len(strings) >= 2:
                found.append(".".join(strings[-2:]))
            elif isinstance(argument, str):
                strings.append(argument)
    except (ValueError, OSError, StopIteration, zipfile.BadZipFile, IndexError):
        pass
    strange = [f for f in dict.fromkeys(found) if not f.startswith(("torch._utils.", "collections.OrderedDict"))]
    return f" ({', '.join(strange[:3])}{', ...' if len(strange) > 3 else ''})" if strange else ""


def unpickle(path: Path) -> Any:
    """A trusted pickle.

    Raises:
        InputError: it cannot be loaded.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except (*FAILURES, ModuleNotFoundError) as error:
        raise InputError(f"{path} cannot be unpickled ({error})", "make the module that it names importable") from None


def torchscript(path: Path, trust: bool) -> nn.Module:
    """A TorchScript module.

    Raises:
        InputError: not trusted, or damaged.
    """
    if not trust:
        raise refusal(path, "a TorchScript program, which is code")
    try:
        return cast(nn.Module, torch.jit.load(str(path), map_location="cpu"))  # type: ignore[no-untyped-call]
    except FAILURES as error:
        raise InputError(f"{path} is not a readable TorchScript file ({error})", "save it again") from None


def exported(path: Path, trust: bool) -> nn.Module:
    """A `torch.export` program as a module that takes any number of rows.

    Raises:
        InputError: not trusted, or damaged.
    """
    if not trust:
        raise refusal(path, "a torch.export program, inside which torch unpickles")
    try:
        program = torch.export.load(str(path))
        return Exported(program.module())
    except FAILURES as error:
        raise InputError(f"{path} is not a readable torch.export file ({error})", "save it again") from None


class Exported(nn.Module):
    """A `torch.export` module, which knows no train or eval mode, as an ordinary one."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> Exported:
        self.training = mode
        return self

    def forward(self, *args: Tensor, **named: Tensor) -> Any:
        return self.program(*args, **named)
