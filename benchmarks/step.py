"""CPU of one step: our loop with its states stored, against the plain SDK called in a loop with the same conversation.

20 model calls a run, 19 of them answered with a tool call; every tool result has 15,000 characters (and once more
with 200, to see what of the cost is the size). Each of these in processes of its own, interleaved:

    ours          the agent loop, its recorder on SQLite, the model client
    sdk_dicts     `client.messages.create`, one client, the conversation as dicts encoded anew at each step
    sdk_objects   the same, the SDK's response objects put back into the conversation
    sdk_bytes     `client.post` with a body of bytes encoded once: the floor
    pydantic_ai   that framework's agent, with its own package versions (on request)
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.child import answer, arguments, run_child
from benchmarks.fake_model import SENTENCE, Play, fake_model
from benchmarks.peers import PYDANTIC_AI, peer_python
from benchmarks.report import Bar, Cell, Options, Report, Table

STEPS = 20
CHARACTERS = 15_000
FEW_CHARACTERS = 200
RUNS = 4
ROUNDS = 5
OURS = "ours"
PEER = "sdk_dicts"
SDK = (PEER, "sdk_objects", "sdk_bytes")
PYDANTIC = "pydantic_ai"
MODEL = "claude-sonnet-5-5"

Once = Callable[[], object]
"""Does one run."""


def look_up(word: str, characters: int) -> str:
    """Return a page of text, a new string each time, as a tool would."""
    return (word + SENTENCE * (characters // len(SENTENCE) + 1))[:characters]


TOOL = {
    "name": "lookup",
    "description": "Looks a word up.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}


def prepare(variant: str, url: str, characters: int, folder: Path) -> Once:
    """Return the function that does one run of the variant."""
    if variant == OURS:
        from benchmarks.one_agent import OneAgent

        agent = OneAgent(f"sqlite:///{folder / 'bench.db'}", url, lambda word: look_up(word, characters))
        return lambda: agent.run(STEPS)
    if variant == PYDANTIC:
        return prepare_pydantic_ai(url, characters)
    return prepare_sdk_bytes(url, characters) if variant == "sdk_bytes" else prepare_sdk(url, variant, characters)


def prepare_sdk(url: str, variant: str, characters: int) -> Once:
    """Return a function that calls the plain SDK in a loop."""
    import anthropic

    client = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)

    def once() -> None:
        messages: list = [{"role": "user", "content": "The topic"}]
        for _ in range(STEPS):
            reply = client.messages.create(
                model=MODEL, max_tokens=16000, system="Research.", tools=[TOOL], messages=messages
            )
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                return
            content = reply.content if variant == "sdk_objects" else [block.model_dump() for block in reply.content]
            messages.append({"role": "assistant", "content": content})
            messages.append(_results([(call.id, call.input) for call in calls], characters))

    return once


def prepare_sdk_bytes(url: str, characters: int) -> Once:
    """Return a function that sends bodies of bytes through the SDK, each message encoded once."""
    import anthropic
    import httpx2

    client = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)
    head = json.dumps({"model": MODEL, "max_tokens": 16000, "system": "Research.", "tools": [TOOL]})[:-1].encode()

    def once() -> None:
        parts = [json.dumps({"role": "user", "content": "The topic"}).encode()]
        for _ in range(STEPS):
            body = head + b', "messages": [' + b", ".join(parts) + b"]}"
            response = client.post("/v1/messages", content=body, cast_to=httpx2.Response)
            content = json.loads(response.content)["content"]
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return
            parts.append(json.dumps({"role": "assistant", "content": content}).encode())
            results = _results([(call["id"], call["input"]) for call in calls], characters)
            parts.append(json.dumps(results).encode())

    return once


def prepare_pydantic_ai(url: str, characters: int) -> Once:
    """Return a function that runs an agent of pydantic-ai. Works in the environment of that peer only."""
    from anthropic import AsyncAnthropic
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(anthropic_client=AsyncAnthropic(api_key="k", base_url=url, max_retries=0))
    # Without a limit of its own it asks for the largest answer there is, and for that it streams.
    settings = {"max_tokens": 16000}
    agent = Agent(AnthropicModel(MODEL, provider=provider), system_prompt="Research.", model_settings=settings)

    @agent.tool_plain
    def lookup(word: str) -> str:
        """Looks a word up."""
        return look_up(word, characters)

    return lambda: agent.run_sync("The topic")


def _results(calls: list[tuple], characters: int) -> dict:
    results = [
        {"type": "tool_result", "tool_use_id": call_id, "content": look_up(given["word"], characters)}
        for call_id, given in calls
    ]
    return {"role": "user", "content": results}


def measure_here(variant: str, url: str, characters: int, runs: int) -> float:
    """Return the CPU milliseconds of a step, the median of so many runs after a first one, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        once = prepare(variant, url, characters, Path(folder))
        once()
        costs = []
        for _ in range(runs):
            before = time.process_time()
            once()
            costs.append((time.process_time() - before) * 1000 / STEPS)
    return median(costs)


def measure(variant: str, characters: int, *, runs: int, python: str) -> float:
    """Return the CPU milliseconds of a step, measured in a new process."""
    with fake_model(Play(STEPS)) as model:
        cost: float = run_child("step", variant, model.url, characters, runs, python=python)
        calls = model.stats()["calls"]
    if calls != (runs + 1) * STEPS:
        raise RuntimeError(f"{variant} made {calls} model calls instead of {(runs + 1) * STEPS}")
    return cost


def compare(variants: dict[str, str], *, rounds: int, runs: int) -> Report:
    """Measure the variants (each with the Python that has its packages), interleaved."""
    sizes = (CHARACTERS, FEW_CHARACTERS)
    costs: dict[tuple[str, int], list[float]] = {(variant, size): [] for variant in variants for size in sizes}
    for _ in range(rounds):
        for variant, size in costs:
            costs[variant, size].append(measure(variant, size, runs=runs, python=variants[variant]))
    medians = {key: median(values) for key, values in costs.items()}
    rows: list[list[Cell]] = []
    for name in variants:
        row: list[Cell] = [name]
        for size in sizes:
            row += [medians[name, size], _ratio(costs[name, size], costs[PEER, size])]
        rows.append([*row, min(costs[name, CHARACTERS]), medians[name, CHARACTERS] / medians[name, FEW_CHARACTERS]])
    columns = ["variant"]
    for size in sizes:
        columns += [f"{size:,}: CPU ms", f"{size:,}: ratio to {PEER}"]
    columns += [f"{CHARACTERS:,}: least ms", f"{CHARACTERS:,} / {FEW_CHARACTERS}"]
    title = (
        f"CPU of a step, {STEPS} steps a run, by the size of a tool result in characters; medians of {rounds} rounds, "
        "a process for each figure in each"
    )
    ratio = _ratio(costs[OURS, CHARACTERS], costs[PEER, CHARACTERS])
    bar = Bar("CPU of our step against the SDK with dicts", "at most 1.0, the aim is 0.7", f"{ratio:.2f}", ratio <= 1)
    return Report("step", [Table(title, columns, rows)], [bar])


def _ratio(costs: list[float], peers: list[float]) -> float:
    # Of the same round: the machine may be half as fast in the next one.
    return median(cost / peer for cost, peer in zip(costs, peers, strict=True))


def run(options: Options) -> Report:
    """Measure all variants."""
    variants = dict.fromkeys((OURS, *SDK), sys.executable)
    if options.with_peers:
        variants[PYDANTIC] = peer_python(PYDANTIC_AI)
    return compare(variants, rounds=1, runs=2) if options.quick else compare(variants, rounds=ROUNDS, runs=RUNS)


if __name__ == "__main__":
    answer(measure_here(*arguments()))
