"""Start the installed package once, away from its checkout. Run by `make wheel-check`, where the wheel is installed."""

import importlib
import pkgutil
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

import gligabao
from gligabao.app import create_app, open_services
from gligabao.config import Config
from gligabao.simulator import Simulator


def main() -> None:
    """Import every module, load the command, and start a server on a new database beside the simulator."""
    home = Path(gligabao.__file__).parent
    assert home.is_relative_to(sys.prefix), f"{home} is not the installed package"
    for module in pkgutil.walk_packages(gligabao.__path__, "gligabao."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    (command,) = entry_points(group="console_scripts", name="gligabao")
    assert callable(command.load())
    with tempfile.TemporaryDirectory() as folder, Simulator():
        services = open_services(Config(database_url=f"sqlite:///{folder}/gligabao.db", data_dir=Path(folder)))
        try:
            answer = create_app(services).test_client().get("/healthz")
            assert answer.status_code == 200, answer.text
        finally:
            services.close()


if __name__ == "__main__":
    main()
