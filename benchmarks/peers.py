"""The environments of peers: made on request in the cache folder, never part of this project's own."""

import os
import subprocess
import venv
from pathlib import Path

PYDANTIC_AI = "pydantic-ai-slim[anthropic]==2.68.0"


def peer_python(requirement: str) -> str:
    """Return the Python of an environment that has the package, made now if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "gligabao-benchmarks" / requirement.translate(str.maketrans("[]=", "---"))
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-I", "-m", "pip", "install", "-q", requirement], check=True)
        (folder / "complete").touch()
    return str(python)
