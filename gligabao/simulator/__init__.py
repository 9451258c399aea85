"""A simulated Messages API over HTTP, with a few sample pages: for the demo, the tests and the benchmarks.

It runs beside the product and knows nothing of it; the product cannot tell it from the real API. It refuses what the
real API refuses, bills what it answers, and plays a scripted researcher over the sample pages unless a test scripts
other replies. Nothing it says comes from a model.
"""

from gligabao.simulator.api import Recorded
from gligabao.simulator.billing import Bill, Totals
from gligabao.simulator.faults import Faults
from gligabao.simulator.scripts import Script
from gligabao.simulator.server import Simulator
from gligabao.simulator.web import DEMO_TEAM_TOPIC, DEMO_TOPIC

__all__ = ["DEMO_TEAM_TOPIC", "DEMO_TOPIC", "Bill", "Faults", "Recorded", "Script", "Simulator", "Totals"]
