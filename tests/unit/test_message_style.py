import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import ddp_client
import ddp_operator
import ddp_protocol
import ddp_trainer
import pytest
from ddp_operator.api.rules import NAME_CEL, SPEC_RULES, TRANSITION_RULES

from tests.message_style import faults, faults_at_terminal, faults_of_refusal
from tests.unit.source_messages import Message, messages

PACKAGES = (ddp_protocol, ddp_operator, ddp_client, ddp_trainer)
FOLDERS = [Path(path) for package in PACKAGES for path in package.__path__]
REFUSALS = {
    "BadParameter",
    "ConfigurationError",
    "ContainerConfigError",
    "ConversionError",
    "FunctionError",
    "ManifestError",
    "UsageError",
    "JobRequestError",
}
"""Errors about a person's input."""

_LISTED = re.compile(r"( [\w ()-]+[,;]){4,}")
"""Lists of choices or of forbidden names may be long."""


@pytest.fixture(scope="module")
def source_messages() -> list[Message]:
    return [one for folder in FOLDERS for one in messages(folder) if one.has_words]


def faulty(
    candidates: Iterable[Message], find: Callable[[str], Iterator[str]]
) -> dict[Message, list[str]]:
    return {one: wrong for one in candidates if (wrong := list(find(one.text)))}


def test_errors_and_logs_follow_the_style(source_messages: list[Message]) -> None:
    assert faulty((one for one in source_messages if not one.is_printed), faults) == {}


def test_errors_about_input_have_a_remedy(source_messages: list[Message]) -> None:
    refusals = [one for one in source_messages if one.by in REFUSALS and not one.ends_elsewhere]
    assert {one.by for one in refusals} == REFUSALS
    assert faulty(refusals, faults_of_refusal) == {}


def test_printed_messages_follow_the_style(source_messages: list[Message]) -> None:
    printed = [one for one in source_messages if one.is_printed]
    assert len(printed) > 10
    assert faulty(printed, lambda text: faults_at_terminal(text.strip())) == {}


def test_messages_of_crd_rules_have_a_remedy() -> None:
    rules = [NAME_CEL[1], *(rule.message for rule in SPEC_RULES)]
    rules += [rule.message for rule in TRANSITION_RULES]
    wrong = {rule: list(faults_of_refusal(_LISTED.sub(" …", rule))) for rule in rules}
    assert not any(wrong.values()), wrong


def test_tracebacks_are_logged_only_for_bugs(source_messages: list[Message]) -> None:
    traced = {one.where.rpartition(":")[0] for one in source_messages if one.by == "exception"}
    assert traced == {
        "ddp_operator/engine/engine.py",
        "ddp_operator/engine/trainers/hangs.py",
        "ddp_operator/engine/trainers/reports.py",
        "ddp_operator/kube/view/reflector.py",
    }


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        ("", "says nothing"),
        ("…: …", "says nothing"),
        ("pod a\nfailed", "is not one line with single blanks"),
        ("pod a  failed", "is not one line with single blanks"),
        ("pod a failed: Traceback", "has a word that only the source explains: Traceback"),
        ("cannot read None", "has a word that only the source explains: None"),
        ("lost _listing", "has a word that only the source explains: _listing"),
        ("Pod a failed", "begins with a capital letter"),
        ("pod a failed.", "ends as a sentence"),
        ("pod a failed!", "ends as a sentence"),
        (f"pod {'a' * 200}", "has 204 characters"),
    ],
)
def test_fault_of_a_message_is_found(message: str, wrong: str) -> None:
    assert wrong in list(faults(message))


@pytest.mark.parametrize(
    "message", ["WORLD_SIZE is 3", "GPUs are gone", "pod a failed: exit code 1"]
)
def test_good_message_has_no_faults(message: str) -> None:
    assert list(faults(message)) == []


def test_missing_remedy_and_incomplete_sentence_are_found() -> None:
    assert list(faults_of_refusal("spec.replicas is wrong")) == ["does not say what to do"]
    assert list(faults_at_terminal("There are no jobs"))
    assert not list(faults_at_terminal("There are no jobs."))


def test_messages_are_found_in_source(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "def f(x):\n"
        "    _logger.info('pod %s is %d', x, 1)\n"
        "    click.echo(f'job {x}' + ' ends')\n"
        "    raise module.WrongError(f'no {x!r:>4}: go')\n"
    )
    assert {one[1:] for one in messages(tmp_path)} == {
        ("info", "pod … is …"),
        ("echo", "job … ends"),
        ("WrongError", "no …: go"),
    }
