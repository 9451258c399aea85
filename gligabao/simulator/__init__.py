"""A simulated Messages API over HTTP, with a small web of its own: for the demo, the tests and the benchmarks.

It stands beside the product and knows nothing of it; the product cannot tell that it talks to it. It refuses what
the real API refuses, bills what it answers, and plays a scripted researcher over a few bundled pages unless other
replies were laid down. Nothing it says comes from a model.
"""

from gligabao.simulator.api import Recorded
from gligabao.simulator.billing import Bill, Totals
from gligabao.simulator.faults import Faults
from gligabao.simulator.scripts import Script
from gligabao.simulator.server import Simulator
from gligabao.simulator.web import DEMO_TEAM_TOPIC, DEMO_TOPIC

__all__ = ["DEMO_TEAM_TOPIC", "DEMO_TOPIC", "Bill", "Faults", "Recorded", "Script", "Simulator", "Totals"]
