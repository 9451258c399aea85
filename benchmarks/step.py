"""CPU of one step: our loop with its states stored, against the plain SDK called in a loop with the same conversation.

20 model calls a run, 19 of them answered with a tool call; every tool result has 15,000 characters. What is
compared, each in processes of its own, interleaved:

    ours          the agent loop, its recorder on SQLite, the model client
    sdk_dicts     `client.messages.create`, one client, the conversation as dicts encoded anew at each step
    sdk_objects   the same, the SDK's response objects put back into the conversation
    sdk_bytes     `client.post` with a body of bytes encoded once: the floor
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.fake_model import fake_model

STEPS = 20
CHARACTERS = 15_000
RUNS = 10
ROUNDS = 3
VARIANTS = ("ours", "sdk_dicts", "sdk_objects", "sdk_bytes")

_PAGE = "The “tide” gauge at the mole reads a little over four metres at springs. "


def look_up(word: str, characters: int = CHARACTERS) -> str:
    """Return a page of text, a new string each time, as a tool would."""
    return (word + _PAGE * (characters // len(_PAGE) + 1))[:characters]


TOOL = {
    "name": "lookup",
    "description": "Looks a word up.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}


def run_ours(url: str, folder: Path, characters: int) -> Callable[[], None]:
    """Return a function that does one run of our agent, its states stored."""
    from benchmarks.agents import Bench

    bench = Bench(f"sqlite:///{folder / 'bench.db'}", url, lambda word: look_up(word, characters))
    return lambda: bench.run_agent(STEPS)


def run_sdk(url: str, variant: str, characters: int) -> Callable[[], None]:
    """Return a function that does one run of the plain SDK in a loop."""
    import anthropic
    import httpx2

    client = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)

    def create(messages: list) -> anthropic.types.Message:
        return client.messages.create(
            model="claude-sonnet-5-5", max_tokens=16000, system="Research.", tools=[TOOL], messages=messages
        )

    def once() -> None:
        messages: list = [{"role": "user", "content": "The topic"}]
        for _ in range(STEPS):
            reply = create(messages)
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                return
            content = reply.content if variant == "sdk_objects" else [b.model_dump() for b in reply.content]
            messages.append({"role": "assistant", "content": content})
            results = [
                {"type": "tool_result", "tool_use_id": c.id, "content": look_up(c.input["word"], characters)}
                for c in calls
            ]
            messages.append({"role": "user", "content": results})

    def once_bytes() -> None:
        head = json.dumps({"model": "claude-sonnet-5-5", "max_tokens": 16000, "system": "Research.", "tools": [TOOL]})
        parts = [json.dumps({"role": "user", "content": "The topic"}).encode()]
        for _ in range(STEPS):
            body = head[:-1].encode() + b', "messages": [' + b", ".join(parts) + b"]}"
            response = client.post("/v1/messages", content=body, cast_to=httpx2.Response)
            content = json.loads(response.content)["content"]
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return
            parts.append(json.dumps({"role": "assistant", "content": content}).encode())
            results = [
                {"type": "tool_result", "tool_use_id": c["id"], "content": look_up(c["input"]["word"], characters)}
                for c in calls
            ]
            parts.append(json.dumps({"role": "user", "content": results}).encode())

    return once_bytes if variant == "sdk_bytes" else once


def measure(variant: str, url: str, characters: int) -> float:
    """Return the CPU milliseconds of a step, the median of `RUNS` runs, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        once = run_ours(url, Path(folder), characters) if variant == "ours" else run_sdk(url, variant, characters)
        once()
        costs = []
        for _ in range(RUNS):
            before = time.process_time()
            once()
            costs.append((time.process_time() - before) * 1000 / STEPS)
    return median(costs)


def main(characters: int = CHARACTERS) -> dict[str, float]:
    """Measure all variants, print them as a table and return the medians."""
    results: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(ROUNDS):
        for variant in VARIANTS:
            with fake_model(steps=STEPS) as url:
                command = [sys.executable, "-m", "benchmarks.step", variant, url, str(characters)]
                printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            results[variant].append(float(printed))
    medians = {variant: median(values) for variant, values in results.items()}
    print(f"CPU ms a step, {STEPS} steps of {characters:,} characters; ratio to sdk_dicts in the same run")
    for variant, value in medians.items():
        print(f"  {variant:12} {value:6.2f}  {value / medians['sdk_dicts']:5.2f}")
    return medians


if __name__ == "__main__":
    assert threading.active_count() == 1
    print(measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))
