"""Starting and reading researches."""

from gligabao.errors import NotFound
from gligabao.handlers.inputs import GetResearch, ListResearch, StartResearch
from gligabao.records import Run, RunWithStates, Status
from gligabao.research.manager import Manager
from gligabao.store.runs import Runs


class ResearchHandlers:
    """The operations on researches. Safe to share between threads."""

    def __init__(self, *, runs: Runs, manager: Manager) -> None:
        self._runs = runs
        self._manager = manager

    def start(self, given: StartResearch) -> Run:
        """Start a research and return its run."""
        return self._manager.start(
            user_id=given.user_id,
            topic=given.topic,
            max_steps=given.max_steps,
            model=given.model,
            dataset=given.dataset,
        )

    def list_runs(self, given: ListResearch) -> list[Run]:
        """Return the user's runs, newest first."""
        return self._runs.list_runs(
            user_id=given.user_id,
            status=Status.RUNNING if given.active else given.status,
            parent_id=given.parent_id,
            before=given.before,
            limit=given.limit,
        )

    def get_run(self, run_id: int, given: GetResearch) -> RunWithStates:
        """Return one of the user's runs with its states, or raise `NotFound`."""
        found = self._runs.get_run_with_states(run_id, user_id=given.user_id, states_after=given.states_after)
        if found is None:
            raise NotFound(f"no research {run_id}")
        return RunWithStates(*found)
