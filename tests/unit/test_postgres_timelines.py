"""Timeline history files."""

from tidemark.readers.postgres.timelines import parse_history


def test_a_history_says_where_each_timeline_ended() -> None:
    text = "1\t0/3000148\tno recovery target specified\n\n# a comment\n2\t16/B374D848\tbefore 2000-01-01 00:00:00+00\n"
    assert parse_history(text) == {1: 0x3000148, 2: 0x16_B374D848}
