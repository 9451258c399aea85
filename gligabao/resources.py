"""Where the folders `sql/` and `prompts/` are: the only code that knows."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path


def data_dir(name: str) -> Traversable:
    """Return `sql` or `prompts`: the copy inside the installed package, else the one beside it in a checkout.

    Inside first, so that an unrelated top-level package of the same name is never read by mistake.
    """
    inside = files("gligabao") / name
    if inside.is_dir():
        return inside
    return Path(__file__).resolve().parent.parent / name
