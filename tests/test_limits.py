"""The numbers that a model is told are those of the code: each limit is changed, and every text follows."""

import json
import re
import subprocess
import sys

import pytest

from gligabao.agent import limits

OTHERS = {
    "MAX_STEPS": 71,
    "DEFAULT_SUBAGENT_STEPS": 13,
    "MAX_CALLS": 29,
    "MAX_SUBAGENTS_PER_AGENT": 7,
    "MAX_SUBAGENTS_PER_TREE": 11,
    "MAX_SUBAGENT_NAME_CHARACTERS": 43,
    "MAX_REASON_CHARACTERS": 311,
    "MAX_TASK_CHARACTERS": 3_001,
    "MAX_MESSAGE_CHARACTERS": 11_003,
    "MAX_WAIT_SECONDS": 73,
    "INBOX_SIZE": 67,
    "MAX_BRIEFING_WORDS": 331,
    "MAX_PAGE_CHARACTERS": 16_001,
}
"""Another value for each limit that a model is told. None of them is in any text today."""
NEVER_TOLD = {"DEFAULT_STEPS", "MAX_TOPIC_CHARACTERS", "MAX_DEPTH"}
"""A model is told how many steps it has, and is given its topic and the tools of its place."""

LEAST = {"0", "1"}
"""The least that is allowed."""
OF_THE_LIST = {"1", "2", "3", "4"}
OF_THE_REPORT = {"300", "1,500"}
ADVICE = {
    "schema of spawn_subagent": {"6"},
    "prompt of a root": OF_THE_LIST | OF_THE_REPORT,
    "prompt of a sub-agent": OF_THE_LIST | OF_THE_REPORT | {"400", "800"},
    "prompt of the last generation": OF_THE_LIST | OF_THE_REPORT | {"400", "800"},
    "end of a page": {"100,000"},
}
"""The numbers that no code checks."""


@pytest.fixture(scope="module")
def told():
    """What a model is told with the limits of the code (""), with one of them changed (its name), with all."""
    changes = {"": {}, "all": OTHERS} | {name: {name: value} for name, value in OTHERS.items()}
    command = [sys.executable, "-m", "tests.told", json.dumps(list(changes.values()))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return dict(zip(changes, json.loads(ran.stdout), strict=True))


def numbers_in(text):
    return set(re.findall(r"(?<![\w.-])\d{1,3}(?:,\d{3})+|(?<![\w.-])\d+", text))


def shown(value):
    """The value as a sentence and as a schema have it."""
    return {str(value), f"{value:,}"}


def test_every_limit_is_told_or_known_not_to_be():
    assert {name for name in vars(limits) if name.isupper()} == OTHERS.keys() | NEVER_TOLD


@pytest.mark.parametrize("name", OTHERS)
def test_a_limit_that_changes_changes_in_the_texts_and_nothing_else_does(told, name):
    before, after = told[""], told[name]
    assert before.keys() == after.keys()
    changed = [text for text in before if before[text] != after[text]]
    assert changed, f"nothing tells {name}"
    for text in changed:
        old, new = shown(getattr(limits, name)), shown(OTHERS[name])
        assert numbers_in(after[text]) & new and not numbers_in(before[text]) & new
        assert re.split("|".join(new | old), after[text]) == re.split("|".join(new | old), before[text])


def test_with_all_limits_changed_no_number_of_today_is_left(told):
    new = {number for value in OTHERS.values() for number in shown(value)}
    for name, text in told["all"].items():
        assert numbers_in(text) <= new | LEAST | ADVICE.get(name, set()), name
    assert {number for text in told["all"].values() for number in numbers_in(text)} >= {
        f"{v:,}" for v in OTHERS.values()
    }
