"""Opening sentences of docstrings, on docstrings whose sentences were counted by hand."""

import inspect

import hypothesis
import pytest
from hypothesis import strategies as st

from gr_jax.corpus.docstrings import sentences, split_docstring

CASES = [
    # One sentence, then sections.
    ("Sorts an array.\n\nArgs:\n  a: what.", ("Sorts an array.",), "Args:\n  a: what."),
    # Two sentences: the second stays.
    ("Sorts an array. Stable for equal keys.", ("Sorts an array.",), "Stable for equal keys."),
    # Three: both go, over line ends.
    (
        "Sorts an\narray. It is stable. And in place.\n\nExample::\n  x",
        ("Sorts an array.", "It is stable."),
        "And in place.\n\nExample::\n  x",
    ),
    # Paragraphs end sentences, with and without a full stop.
    ("Sorts an array\n\nIt is stable\n\nIt is fast", ("Sorts an array", "It is stable"), "It is fast"),
    # Abbreviations, numbers and dotted names do not.
    (
        "Sorts e.g. Arrays (cf. Knuth, vol. 3). Takes numpy.ndarray of 1.5 GB. It is fast.",
        ("Sorts e.g. Arrays (cf. Knuth, vol. 3).", "Takes numpy.ndarray of 1.5 GB."),
        "It is fast.",
    ),
    # Lists, headings, fields, examples and directives are no prose.
    ("Sorts an array.\n\n- fast\n- stable\n\nIt works. Always.", ("Sorts an array.",), None),
    ("Sorts an array.\n\nParameters\n----------\na : array. Given. Twice.", ("Sorts an array.",), None),
    ("Sorts an array.\n\n:param a: array. Given. Twice.", ("Sorts an array.",), None),
    ("Sorts an array.\n\n.. note:: It works. Always. Well.", ("Sorts an array.",), None),
    ("Sorts an array.\n\n>>> sort(a). It. Works.", ("Sorts an array.",), None),
    # A role is prose.
    (":func:`sort` but lazy. It waits. Then sorts.", (":func:`sort` but lazy.", "It waits."), "Then sorts."),
    # What introduces something is no query.
    ("Sorts an array. Use it thus::\n\n  sort(a)\n\nOr not. At all.", ("Sorts an array.",), None),
    ("One of:\n\na. b. c.", (), None),
    ("Sort.", (), "Sort."),
    (">>> sort(a)", (), ">>> sort(a)"),
]


@pytest.mark.parametrize(("doc", "queries", "rest"), CASES)
def test_opening_sentences_become_queries(doc, queries, rest):
    found, left = split_docstring(doc)
    assert found == queries
    if rest is not None:
        assert left == rest


@hypothesis.given(st.text(st.sampled_from("Ab .\n:>-`=1?"), max_size=60))
def test_nothing_is_lost(text):
    doc = inspect.cleandoc(text)
    queries, rest = split_docstring(doc)
    assert len(queries) <= 2
    assert " ".join([*queries, rest]).split() == doc.split()
    spans = list(sentences(doc))
    assert all(start < end for start, end in spans)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
