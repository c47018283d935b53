"""`--algorithms erm mat ldat`: options that take all the words that follow."""

import pytest

from domainwise.cli.options import spread

REPEATABLE = {"--algorithms", "--test-domains", "-H"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--algorithms erm mat", "--algorithms erm --algorithms mat"),
        ("--algorithms erm --draws 3 --algorithms mat", "--algorithms erm --draws 3 --algorithms mat"),
        ("--draws 3 runs/a", "--draws 3 runs/a"),
        ("--test-domains -90% +80% --draws 3", "--test-domains -90% --test-domains +80% --draws 3"),
        ("-H epsilon=1 count=3 -o x", "-H epsilon=1 -H count=3 -o x"),
        ("status runs/a", "status runs/a"),
        ("--algorithms erm status runs/a", "--algorithms erm status runs/a"),
        ("--algorithms status", "--algorithms status"),
        ("--algorithms --draws", "--algorithms --draws"),
        ("--algorithms", "--algorithms"),
        ("--algorithms=erm mat", "--algorithms=erm mat"),
        ("", ""),
    ],
)
def test_words_that_follow_are_values_too(words: str, expected: str) -> None:
    assert spread(words.split(), REPEATABLE, {"status"}) == expected.split()
