"""Whether the server can take work."""

import shutil
from dataclasses import dataclass

from gligabao.config import Config
from gligabao.errors import StoreError
from gligabao.research.manager import Manager
from gligabao.store.database import Database, is_sqlite, sqlite_path

MIN_FREE_BYTES = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Readiness:
    """What the server says of itself when asked whether it can take work."""

    obstacles: list[str]
    """Why it cannot; empty when it can."""
    database_error: StoreError | None
    """Why the database is one of them. For the log."""
    has_model_key: bool
    """Without a key the server is ready all the same, since runs can be read."""

    @property
    def is_ready(self) -> bool:
        """Whether the server can take work."""
        return not self.obstacles


class ReadinessHandler:
    """Looks at the parts of the server that work depends on."""

    def __init__(self, *, config: Config, db: Database, manager: Manager) -> None:
        self._config = config
        self._db = db
        self._manager = manager

    def check(self) -> Readiness:
        """Return whether the server can take work, and why not."""
        obstacles, database_error = [], None
        if self._manager.stopping:
            obstacles.append("the server is stopping")
        try:
            self._db.ping()
        except StoreError as error:
            obstacles.append(error.client_text)
            database_error = error
        if self._disk_is_full():
            obstacles.append(f"less than {MIN_FREE_BYTES // 2**20} MB are free on the disk of the database")
        return Readiness(obstacles, database_error, has_model_key=self._config.anthropic_api_key is not None)

    def _disk_is_full(self) -> bool:
        url = self._config.database_url
        if not is_sqlite(url):
            return False
        try:
            return shutil.disk_usage(sqlite_path(url).parent).free < MIN_FREE_BYTES
        except OSError:
            return False  # The folder is gone: the ping has reported that.
