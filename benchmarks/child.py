"""Measurements in processes of their own: what one of them allocates or imports is not in the next one's figures."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def run_child(module: str, *arguments: Any, python: str = sys.executable) -> Any:
    """Run `python -m benchmarks.<module>` with the arguments as JSON, and return what it prints last, read as JSON."""
    command = [python, "-m", f"benchmarks.{module}", *(json.dumps(argument) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{module} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def arguments() -> list[Any]:
    """Return what `run_child` gave to this process."""
    return [json.loads(argument) for argument in sys.argv[1:]]


def answer(value: Any) -> None:
    """Give the value to the process that called `run_child`."""
    print(json.dumps(value), flush=True)
