"""Where phrases stand, and how they are shown."""

from gr_jax.retrievers.phrases import find_phrase, marked


def test_case_and_white_space_do_not_matter():
    text = "In New\n York, U.S.; newyork and renew yorkers."
    assert [text[start:end] for start, end in find_phrase("new york", text)] == ["New\n York", "newyork"]
    assert [text[start:end] for start, end in find_phrase("u . s .", text)] == ["U.S."]
    assert find_phrase("(", "f(x)") == ((1, 2),) and find_phrase(" ", text) == () == find_phrase("paris", text)
    assert find_phrase("東京", "西東京市") == ((1, 3),)


def test_marks_stand_around_what_overlaps_once():
    assert marked("one two three", [(4, 7), (4, 13), (0, 0)], 100) == "one »two three«"
    assert marked("one two three", [], 7) == "one two"


def test_the_passage_with_the_most_marks_is_shown():
    text = "word " * 40 + "the answer is here and there"
    start = text.index("answer")
    shown = marked(text, [(0, 4), (start, start + 6), (start + 10, start + 14)], 40)
    assert "»answer« is »here«" in shown and shown.startswith("…") and len(shown) <= 40 + 5
