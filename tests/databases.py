"""Databases that tests open by hand. What a test leaves open when it fails is closed after it."""

from typing import Any

from gligabao.store import database
from gligabao.store.database import Database

_opened: list[Database] = []


def open_database(url: str, **options: Any) -> Database:
    """Open a database as the product does, and remember it until the end of the test."""
    db = database.open_database(url, **options)
    _opened.append(db)
    return db


def forget(*, close: bool) -> None:
    """Forget the databases that were opened; with `close`, close them as well. Closing one twice does no harm."""
    while _opened:
        db = _opened.pop()
        if close:
            db.close()
