"""`calib completion`: what a shell needs to complete commands, options and names."""

from __future__ import annotations

from typing import Literal

from calibcli.cli.run import takes
from calibcli.core.errors import Exit
from calibcli.core.options import argument

PANEL = "Look up"


@takes
def command(*, shell: Literal["bash", "zsh", "fish", "powershell"] = argument("bash, zsh, fish or powershell.")) -> int:
    """Print the script by which a shell completes names.

    Example: calib completion bash >> ~/.bashrc

    Open a new shell afterwards. Zsh and fish read it from a file of their own: calib completion fish >
    ~/.config/fish/completions/calib.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name="calib", complete_var="_CALIB_COMPLETE", shell=shell))
    return int(Exit.OK)
