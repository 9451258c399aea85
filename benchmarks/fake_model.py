"""A Messages API that costs next to nothing: canned answers over raw sockets, in a process of its own.

It checks nothing (the simulator does that); here it must not be what limits a measurement. Each connection gets
`steps - 1` answers with a tool call and then one with the report, and so on round.
"""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

ANSWER_CHARACTERS = 2000
USAGE = {
    "input_tokens": 1000,
    "output_tokens": 500,
    "cache_read_input_tokens": 2000,
    "cache_creation_input_tokens": 300,
}


def _body(content: list[dict], stop_reason: str) -> bytes:
    message = {
        "id": "msg_bench",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": USAGE,
    }
    body = json.dumps(message).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _answers(steps: int) -> list[bytes]:
    said = {"type": "text", "text": "word " * (ANSWER_CHARACTERS // 5)}
    calls = [
        [said, {"type": "tool_use", "id": f"toolu_{step}", "name": "lookup", "input": {"word": f"w{step}"}}]
        for step in range(1, steps)
    ]
    return [*(_body(content, "tool_use") for content in calls), _body([said], "end_turn")]


def _serve(connection: socket.socket, answers: list[bytes], latency_seconds: float) -> None:
    count = 0
    data = b""
    with contextlib.suppress(OSError), connection:
        while True:
            while b"\r\n\r\n" not in data:
                received = connection.recv(65536)
                if not received:
                    return
                data += received
            head, _, data = data.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            left = length - len(data)
            while left > 0:
                left -= len(connection.recv(min(left, 1 << 20)))
            data = b""
            if latency_seconds:
                time.sleep(latency_seconds)
            connection.sendall(answers[count % len(answers)])
            count += 1


def main() -> None:
    """Serve until the standard input is closed; print the port first."""
    steps, latency_seconds = int(sys.argv[1]), float(sys.argv[2])
    answers = _answers(steps)
    threading.stack_size(256 * 1024)
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listener.getsockname()[1], flush=True)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_serve, args=(connection, answers, latency_seconds), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdin.read()


@contextlib.contextmanager
def fake_model(*, steps: int, latency_seconds: float = 0.0) -> Iterator[str]:
    """Run the server beside this process and give its base URL."""
    command = [sys.executable, "-m", "benchmarks.fake_model", str(steps), str(latency_seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


if __name__ == "__main__":
    main()
