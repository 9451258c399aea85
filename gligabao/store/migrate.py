"""The schema and its versions: `sql/<dialect>/migrations/0001_runs.sql` and the migrations after it."""

import logging
import re
from dataclasses import dataclass
from importlib.resources.abc import Traversable

from gligabao import records
from gligabao.errors import StartError
from gligabao.resources import data_dir
from gligabao.store.database import Database
from gligabao.store.queries import Dialect, QueryError
from gligabao.store.transaction import Transaction

log = logging.getLogger(__name__)

_FILE = re.compile(r"(\d{4})_\w+\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """The script that turns one version of the schema into the next."""

    version: int
    script: str


def migrate(db: Database, *, folder: Traversable | None = None) -> int:
    """Bring the schema to the newest version, all or nothing, and return that version.

    Only reads when the schema is up to date. Raises `StartError` when it is newer than this program.
    """
    migrations = read_migrations(folder or data_dir("sql"), db.dialect)
    newest = migrations[-1].version
    with db.snapshot() as read:
        if _check_version(read, newest) == newest:
            return newest
    with db.transaction(patient=True) as tx:
        tx.execute("lock_schema")
        # Check again: another node may have migrated while this one waited for the lock.
        found = _check_version(tx, newest)
        for migration in migrations[found:]:
            _apply(tx, migration)
    log.info("the database schema is now at version %d (it was at %d)", newest, found)
    return newest


def read_migrations(folder: Traversable, dialect: Dialect) -> list[Migration]:
    """Return the migrations of the dialect in order. Raises `QueryError` unless they are numbered 1, 2, 3, ..."""
    scripts = sorted((folder / dialect / "migrations").iterdir(), key=lambda entry: entry.name)
    migrations = []
    for version, entry in enumerate(scripts, start=1):
        name = _FILE.fullmatch(entry.name)
        if not name or int(name[1]) != version:
            raise QueryError(f"{entry}: the next migration must be named {version:04d}_<what>.sql")
        migrations.append(Migration(version, entry.read_text(encoding="utf-8")))
    return migrations


def _check_version(tx: Transaction, newest: int) -> int:
    """Return the version of the schema, 0 for an empty database."""
    if not tx.fetch_one("find_schema_table"):
        return 0
    row = tx.fetch_one("schema_version")
    found = row["version"] if row else 0
    if found > newest:
        raise StartError(
            f"the database has schema version {found}, this gligabao knows versions up to {newest}: "
            "install a newer gligabao, or use another database"
        )
    return int(found)


def _apply(tx: Transaction, migration: Migration) -> None:
    tx.run_script(migration.script)
    tx.execute("insert_schema_version", version=migration.version, applied_at=records.now())
