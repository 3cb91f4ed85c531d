"""What survives: kill -9, torn files, two brokers on one folder; and what a start that fails says."""

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from shared.bus.devbroker.running import RunningBroker
from shared.bus.devbroker.settings import DevBrokerError, DevBrokerSettings
from tests.bus.devbroker.clients import ROOT, BrokerProcess, admin, create, eventually, producer, read, send

pytestmark = pytest.mark.timeout(120)


def log_files(data: Path) -> list[Path]:
    return sorted((data / "logs").rglob("*.log"))


def test_every_acknowledged_record_survives_kills_in_the_middle_of_producing(tmp_path: Path) -> None:
    acknowledged: list[tuple[int, bytes]] = []
    stop = threading.Event()

    def produce(bootstrap: str) -> None:
        client = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=True,
            retry_backoff_ms=20,
            linger_ms=1,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=50,
            delivery_timeout_ms=30_000,
            request_timeout_ms=5_000,
        )
        index = 0
        while not stop.is_set():
            burst = [(b"%d" % (index + step), client.send("t", b"%d" % (index + step))) for step in range(20)]
            index += 20
            acknowledged.extend((future.get(40).offset, value) for value, future in burst)
        client.close()

    with BrokerProcess(tmp_path / "data") as broker:
        create(broker.bootstrap, "t")
        thread = threading.Thread(target=produce, args=(broker.bootstrap,))
        thread.start()
        eventually(lambda: len(acknowledged) > 100, 30)
        broker.kill_and_restart()
        eventually(lambda: len(acknowledged) > 200, 30)
        broker.kill_and_restart()
        eventually(lambda: len(acknowledged) > 400, 30)
        stop.set()
        thread.join(60)
        broker.kill_and_restart()
        records = read(broker.bootstrap, "t", len(acknowledged), timeout_s=20)
    assert len(acknowledged) > 400
    stored = {record.offset: record.value for record in records}
    assert all(stored[offset] == value for offset, value in acknowledged)
    assert [record.value for record in records] == [b"%d" % index for index in range(len(records))], (
        "order or repeats"
    )


@pytest.mark.parametrize("damage", ["garbage", "half a batch", "flipped bit", "zeros"])
def test_a_torn_tail_is_cut_and_the_rest_is_served(tmp_path: Path, damage: str) -> None:
    settings = DevBrokerSettings(data_dir=tmp_path / "data")
    with RunningBroker(settings) as broker:
        create(broker.bootstrap, "t")
        with producer(broker.bootstrap) as client:
            for index in range(10):
                client.send("t", b"%d" % index).get(10)  # a batch each
    (file,) = log_files(tmp_path / "data")
    content = file.read_bytes()
    tail = {
        "garbage": b"\x07" * 500,
        "half a batch": content[-30:] + content[:70],
        "zeros": bytes(4096),
        "flipped bit": b"",
    }[damage]
    if damage == "flipped bit":
        content = content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]
    file.write_bytes(content + tail)
    with RunningBroker(settings) as broker:
        kept = 9 if damage == "flipped bit" else 10
        assert send(broker.bootstrap, "t", [b"next"]) == [kept]
        values = [record.value for record in read(broker.bootstrap, "t", kept + 1)]
        assert values == [b"%d" % index for index in range(kept)] + [b"next"]


def test_a_torn_journal_keeps_the_commits_before_the_tear(tmp_path: Path) -> None:
    settings = DevBrokerSettings(data_dir=tmp_path / "data")
    partition = TopicPartition("t", 0)
    with RunningBroker(settings) as broker, admin(broker.bootstrap) as client:
        create(broker.bootstrap, "t")
        for offset in (1, 2):
            client.alter_group_offsets("g", {partition: OffsetAndMetadata(offset, "", -1)})
    journal = tmp_path / "data" / "groups.journal"
    journal.write_bytes(journal.read_bytes()[:-7])
    with RunningBroker(settings) as broker, admin(broker.bootstrap) as client:
        assert client.list_group_offsets("g")["g"][partition].offset == 1
        client.alter_group_offsets("g", {partition: OffsetAndMetadata(3, "", -1)})
    with RunningBroker(settings) as broker, admin(broker.bootstrap) as client:
        assert client.list_group_offsets("g")["g"][partition].offset == 3


def test_two_brokers_cannot_share_a_folder(tmp_path: Path) -> None:
    settings = DevBrokerSettings(data_dir=tmp_path / "data")
    in_use = pytest.raises(DevBrokerError, match=r"in use by another broker \(process \d+\)")
    with RunningBroker(settings), in_use:
        RunningBroker(settings).start()
    with RunningBroker(settings):
        pass  # released


def run_broker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shared.bus.devbroker", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_start_that_fails_gives_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        used_port = run_broker("--port", port, "--data", str(tmp_path / "a"))
    a_file = tmp_path / "file"
    a_file.write_text("")
    no_folder = run_broker("--port", "0", "--data", str(a_file / "sub"))
    bad_value = run_broker("--port", "70000", "--data", str(tmp_path / "b"))
    for result, named in ((used_port, port), (no_folder, str(a_file)), (bad_value, "port")):
        assert result.returncode == 2
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
        assert named in result.stderr
        assert "Traceback" not in result.stderr


def test_sigterm_is_a_clean_stop(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    create(broker.bootstrap, "t")
    assert broker.signal(signal.SIGTERM) == 0
    assert (tmp_path / "data" / "clean-stop").exists()
