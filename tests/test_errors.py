"""What errors show, and that they survive on their way between processes."""

import pickle

import pytest

from xyreward.errors import (
    ConfigError,
    DataError,
    HubUnreachable,
    JudgeError,
    LeakError,
    MissingDependency,
    RunFolderError,
    XYRewardError,
    printable,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda text: DataError([text]),
        LeakError,
        ConfigError,
        RunFolderError,
        MissingDependency,
        HubUnreachable,
        JudgeError,
    ],
)
def test_no_message_moves_the_cursor_or_hides_its_text(make: type[XYRewardError]) -> None:
    said = str(make("column \x1b[2J\x07\r\u202e\u200b\x9b \udce9 caf\u00e9 \u95f9\u949f"))
    expected = r"column \x1b[2J\x07\r\u202e\u200b\x9b \udce9 caf" + "\u00e9 \u95f9\u949f"
    assert said.splitlines()[-1].strip() == expected


def test_a_problem_is_one_line_whatever_it_quotes() -> None:
    error = DataError(["file a\nb.jsonl: x", "second"])
    assert error.problems == [r"file a\nb.jsonl: x", "second"]
    assert str(error) == "2 problems in the data:\n  file a\\nb.jsonl: x\n  second"
    assert pickle.loads(pickle.dumps(error)).problems == error.problems


def test_a_message_of_several_lines_keeps_them() -> None:
    assert str(ConfigError("a.yaml: one\na.yaml: two\t")) == "a.yaml: one\na.yaml: two\\t"


def test_what_can_be_printed_stays_as_it_is() -> None:
    assert printable("S-request, \u4f60\u597d, \\n 'q'") == "S-request, \u4f60\u597d, \\n 'q'"
