"""Checks SQL conditions of the job file (`snapshot.where`), only as far as needed to embed them.

A condition is put in parentheses after the split's own bounds: ``… WHERE (bounds) AND (condition)``. A text that could
close the parentheses, end the statement or hide the rest of it is refused. The server checks everything else.
"""

import re

_TOKEN = re.compile(
    r"""(?P<quoted>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*"|`(?:[^`]|``)*`)
      | (?P<comment>--|\#|/\*|\*/)
      | (?P<mark>['"`();])
      | (?P<other>[^'"`();\-\#/*]+|.)""",
    re.VERBOSE | re.DOTALL,
)


def check_given_condition(text: str, *, backticks_quote: bool) -> str:
    """Checks a condition whose author may lack the job's passwords (`tidemark signal`): nothing in it may mean a quote to the
    server and not to this check, or the other way round. `backticks_quote`: the source is MySQL or MariaDB. Returns ``text``
    unchanged. Raises ValueError with what is wrong."""
    check_condition(text)
    if "\\" in text or "\0" in text:
        raise ValueError("must not have a backslash")
    outside = _TOKEN.sub(lambda token: "" if token["quoted"] and token["quoted"][0] != "`" else token[0], text)
    if "$" in outside:
        raise ValueError("must not have a $ outside quotes")
    if "`" in outside and not backticks_quote:
        raise ValueError("must not have a ` outside quotes")
    return text


def check_condition(text: str) -> str:
    """Returns ``text`` unchanged. Raises ValueError with what is wrong."""
    if not text.strip():
        raise ValueError("is empty; leave the table out to read all its rows")
    if re.match(r"\s*where\b", text, re.IGNORECASE):
        raise ValueError("must be the condition alone, without the word WHERE")
    depth = 0
    for token in _TOKEN.finditer(text):
        if token["comment"]:
            raise ValueError(
                f"must not have a comment sign ({token['comment']}) outside quotes; write 'a - -1' for 'a--1'"
            )
        match token["mark"]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case ";":
                raise ValueError("must be one condition; ';' is not allowed outside quotes")
            case "'" | '"' | "`" as quote:
                raise ValueError(f"has an unpaired quote {quote}")
            case _:
                pass
        if depth < 0:
            break
    if depth:
        raise ValueError("has an unpaired parenthesis")
    return text
