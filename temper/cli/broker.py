"""`temper broker`: the dev broker on its own, for a laptop without Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def broker(
    data: Annotated[Path, typer.Option(help="Folder for topics and offsets; made if it is not there.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free port and prints it.")] = 9092,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    advertised_host: Annotated[
        str, typer.Option(help="Address that clients are told; default: the one they dialled.")
    ] = "",
    ready_file: Annotated[
        Path | None, typer.Option(help="Written with host:port once connections are accepted.")
    ] = None,
) -> None:
    """Serve the Kafka protocol from this process until SIGTERM. For development, not for production."""
    from shared.bus.devbroker.broker import Broker
    from shared.bus.devbroker.files import replace_file
    from shared.bus.devbroker.server import NOTICE, serve
    from shared.bus.devbroker.settings import DevBrokerSettings

    settings = DevBrokerSettings(data_dir=data, host=host, port=port, advertised_host=advertised_host or None)

    def on_ready(running: Broker) -> None:
        address = f"{host}:{running.port}"
        typer.echo(f"broker: serving Kafka clients on {address}, data in {data}")
        typer.echo(f"broker: {NOTICE}")
        if ready_file is not None:
            replace_file(ready_file, address.encode())

    serve(settings, on_ready)
