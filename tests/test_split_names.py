"""What names say: every way to write a test split, and the English words that are none."""

from pathlib import Path

import pytest

from xyreward.split_names import Named, names_a_test_split, names_above, split_in, strictest


@pytest.mark.parametrize(
    "name",
    """
    test tests Test TEST testing testset TestSet TESTset testsets testdata testv2 test_v2 test2 testB
    testmini XYBenchTest xybenchtest XYBENCHTEST XYBench-test xybench.test xybench_testset wikihowtest
    test-00000-of-00002 test_hard my_test mytestset devtest test-dev train_test traintest retest
    held_out held-out heldout HeldOut HELD_OUT held.out heldoutset hold_out hold-out holdout Holdout
    hidden Hidden hidden_test hiddentest blind unseen eval evals evaluation evalset xybencheval
    \uff54\uff45\uff53\uff54 prot\u00e9_test 2024test test2024 latest_test greatest-tests
    """.split(),  # noqa: SIM905
)
def test_a_test_split_is_known_however_its_name_is_written(name: str) -> None:
    assert split_in(name) == "test"


def test_held_out_is_two_words_too() -> None:
    assert split_in("what is held out") == "test"
    assert split_in("held or out") is None


@pytest.mark.parametrize(
    "name",
    """
    latest Latest LATEST latest2 latestdata latestv2 contest contests Contest2024 protest attestation
    attest greatest fastest detest testimony testimonials testament testers tested testable pytest
    medieval retrieval evaluator household_outdoors withheld trainers items data xybench XYBench
    XYBench-dataset development devs value interval validity hidden_goal hidden-goals hiddenGoals
    """.split(),  # noqa: SIM905
)
def test_other_words_name_no_split(name: str) -> None:
    assert split_in(name) is None


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("train-00000-of-00002", "train"),
        ("training", "train"),
        ("trainset", "train"),
        ("XYBenchTrain", "train"),
        ("validation", "validation"),
        ("valid", "validation"),
        ("val", "validation"),
        ("dev", "validation"),
        ("devset", "validation"),
        ("XYBenchDev", "validation"),
        ("train_dev", "validation"),
        ("", None),
        ("42", None),
    ],
)
def test_the_other_splits_are_known_by_the_hubs_names(name: str, split: str | None) -> None:
    assert split_in(name) == split


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("test", True),
        ("tests", True),
        ("test-set", True),
        ("XYBench-test", True),
        ("xybench_test_v2", True),
        ("XYBenchTest", True),
        ("held-out", True),
        ("hidden", True),
        ("test_data", True),
        ("ab-test", False),
        ("my-test-project", False),
        ("test_the_name_of_a_file0", False),
        ("dev", False),
        ("train", False),
        ("data", False),
        ("hidden_goals", False),
    ],
)
def test_a_whole_name_is_that_of_a_test_split_or_says_something_else(
    name: str, whole: bool
) -> None:
    assert names_a_test_split(name) == whole


def test_the_strictest_name_counts_and_of_equals_the_first() -> None:
    train, dev = Named("train", "a"), Named("dev", "b")
    test, hard, other = Named("test", "c"), Named("test_hard", "d"), Named("wikihow", "e")
    assert strictest([train, dev, other]) == dev
    assert strictest([train, test, dev, hard]) == test
    assert strictest([hard, test]) == hard
    assert strictest([other, train]) == train
    assert strictest([]) is None


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        # The folder itself: any word.
        ("/data/XYBench/test", ["test"]),
        ("/data/xybench_test", ["test"]),
        ("/data/test-wikihow", ["test"]),
        ("/data/my-validation", ["validation"]),
        ("/data/train", []),
        ("/data/contest", []),
        # The one above: only where that is its whole name, and only a test split.
        ("/data/XYBench/test/data", ["test"]),
        ("/data/XYBench-test/part-1", ["test"]),
        ("/home/me/my-test-project/data", []),
        ("/home/me/dev/data", []),
        # Those further up: never.
        ("/home/me/test/xybench/data", []),
        # pytest calls folders after the function that tests.
        ("/tmp/pytest-of-me/pytest-0/test_something0", []),
        ("/tmp/pytest-of-me/pytest-0/test0/data", []),
        ("/tmp/pytest-of-me/pytest-0/popen-gw1/test_something0", []),
        ("/tmp/pytest-of-me/pytest-0/test_something0/XYBench/test", ["test"]),
        ("/tmp/mine/test_something0", ["test"]),
    ],
)
def test_a_folder_holds_out_by_its_own_name_and_by_the_one_above_it(
    folder: str, found: list[str]
) -> None:
    assert [named.text for named in names_above(Path(folder))] == found
