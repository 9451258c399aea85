"""Building the objects of a server: a start that fails leaves nothing behind and keeps nothing locked."""

import pytest

from gligabao.app import open_services
from gligabao.config import Config
from gligabao.errors import StartError, StoreError


def test_a_start_that_cannot_call_the_model_touches_no_database(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "gopher://proxy.example:1")
    with pytest.raises(StartError, match="proxy"):
        open_services(Config(database_url=f"sqlite:///{tmp_path}/g.db", data_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_start_whose_database_fails_lets_go_of_it_and_of_the_lock(database_url, tmp_path):
    config = Config(database_url=database_url, data_dir=tmp_path)

    def fail(url):
        raise StoreError("the database failed")

    with pytest.raises(StoreError):
        open_services(config, open_db=fail)
    open_services(config).close()
