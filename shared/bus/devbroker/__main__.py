"""`python -m shared.bus.devbroker --port 9092 --data folder`: the dev broker on its own.

Invariant: bad arguments and a broker that can't start give one line and exit code 2.
"""

import argparse
import sys
from pathlib import Path

from pydantic import ValidationError

from shared.bus.devbroker.broker import Broker
from shared.bus.devbroker.files import replace_file
from shared.bus.devbroker.server import NOTICE, serve
from shared.bus.devbroker.settings import DevBrokerError, DevBrokerSettings, FlushPolicy


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="devbroker", description=NOTICE)
    parser.add_argument("--port", type=int, required=True, help="0 picks a free port")
    parser.add_argument("--data", type=Path, required=True, help="folder for topics and offsets")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument(
        "--advertised-host", help="address that clients are told; default: the one they dialled"
    )
    parser.add_argument(
        "--ready-file", type=Path, help="written with host:port once connections are accepted"
    )
    parser.add_argument("--flush", choices=[policy.value for policy in FlushPolicy], default="interval")
    parser.add_argument("--message-max-bytes", type=int, default=1_048_588)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM; the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        settings = DevBrokerSettings(
            data_dir=parsed.data,
            host=parsed.host,
            port=parsed.port,
            advertised_host=parsed.advertised_host,
            flush=FlushPolicy(parsed.flush),
            message_max_bytes=parsed.message_max_bytes,
        )
    except ValidationError as fault:
        first = fault.errors()[0]
        print(f"devbroker: {first['loc'][0]}: {first['msg']}", file=sys.stderr)
        return DevBrokerError.exit_code

    def on_ready(broker: Broker) -> None:
        address = f"{settings.host}:{broker.port}"
        print(f"devbroker: serving Kafka clients on {address}, data in {settings.data_dir}", flush=True)
        print(f"devbroker: {NOTICE}", flush=True)
        if parsed.ready_file is not None:
            replace_file(parsed.ready_file, address.encode())

    try:
        serve(settings, on_ready)
    except DevBrokerError as fault:
        print(f"devbroker: {fault}", file=sys.stderr)
        return fault.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
