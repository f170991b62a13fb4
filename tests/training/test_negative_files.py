import gzip

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.training.negative_files import negatives_from_file
from gr_jax.training.negatives import mix, random_negatives
from gr_jax.training.token_store import Ragged

NAN = np.nan
DOCUMENTS = {f"d{number}": number for number in range(10)}
# The first query has two answers and so two rows; the third row is a pseudo-query's.
ROWS = ["q1", "q1", "", "q2"]
RELEVANT = Ragged(np.array([0, 1, 1, 0, 5, 2], np.int32), np.array([0, 2, 4, 5, 6]))


def read(file, count=2):
    return negatives_from_file(file, ROWS, RELEVANT, count, find_document=DOCUMENTS.get, known_queries={"other"})


def write(tmp_path, text):
    file = tmp_path / "negatives"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    "text",
    (
        "q1 d3\nq1 d0\nq1\td4\n\nq2 d2\nother d9\nq2 d6\nq1 d7\n",
        "q1 Q0 d3 1 9.5 BM25\nq1 Q0 d0 2 9 BM25\nq1 Q0 d4 3 8 BM25\nq2 Q0 d2 1 3 x\nq2 Q0 d6 2 2 x\nq1 Q0 d7 4 1 x\n",
        '{"query-id": "q1", "negatives": ["d3", "d0", "d4", "d7"]}\n{"query-id": "q2", "negatives": ["d6"]}\n'
        '{"query-id": "other", "negatives": ["d9"]}\n',
        'q1 d3\n{"query-id": "q1", "negatives": ["d4"]}\nq2 d6\n',
    ),
)
def test_every_form_gives_the_same_table(text, tmp_path):
    table = read(write(tmp_path, text))
    np.testing.assert_array_equal(table.documents, [[3, 4], [3, 4], [-1, -1], [6, -1]])
    assert table.teacher_scores is None


def test_a_teachers_scores_of_negatives_and_answers(tmp_path):
    text = 'q1 d3 1.5\nq1 d1 8\nq1 d4 -2e0\n{"query-id": "q2", "negatives": ["d6", "d2"], "scores": [0, 7.25]}\n'
    (tmp_path / "negatives.gz").write_bytes(gzip.compress(text.encode()))
    table = read(tmp_path / "negatives.gz")
    np.testing.assert_array_equal(table.documents, [[3, 4], [3, 4], [-1, -1], [6, -1]])
    expected = [[NAN, 1.5, -2], [8, 1.5, -2], [NAN] * 3, [7.25, 0, NAN]]
    np.testing.assert_array_equal(table.teacher_scores, expected)


def test_short_rows_are_filled_by_the_kinds_behind_the_file(tmp_path):
    table = read(write(tmp_path, "q1 d3\nq2 d6\n"), count=3)
    mixed = mix({"file": table, "random": random_negatives(RELEVANT, 10, 3)}, {"file": 1.0}, 3)
    assert (mixed.documents >= 0).all()
    np.testing.assert_array_equal(mixed.documents[[0, 1, 3], 0], [3, 3, 6])


@pytest.mark.parametrize(
    "line, says",
    (
        ("q1 d3 1.5 x", "4 fields"),
        ("q1", "1 fields"),
        ("q7 d3", "no query has this id"),
        ("q1 d77", "no document of the corpus"),
        ("q1 d4", "already named"),
        ("q1 d3 high", "no finite number"),
        ("q1 d3 inf", "no finite number"),
        ('{"query-id": "q1", "negatives": "d3"}', "not a query with its negatives"),
        ('{"query-id": "q1", "negatives": ["d3"], "scores": []}', "not a query with its negatives"),
        ('{"query-id": "q1", "negatives": ["d3"], "scores": [true]}', "no finite number"),
        ('{"query-id": ', "not JSON"),
    ),
)
def test_errors_name_file_and_line(line, says, tmp_path):
    file = write(tmp_path, f"q1 d4\n\n{line}\n")
    with pytest.raises(InputError, match=says) as error:
        read(file)
    assert (error.value.file, error.value.line) == (file, 3)


def test_a_file_about_other_queries_is_refused(tmp_path):
    with pytest.raises(InputError, match="no negatives of the queries"):
        read(write(tmp_path, '{"query-id": "other", "negatives": ["d3"]}\n'))
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "nothing")
    with pytest.raises(InputError, match="one id for each row"):
        negatives_from_file("x", ["q1"], RELEVANT, 1, find_document=DOCUMENTS.get)


def test_scores_of_negatives_alone_are_refused(tmp_path):
    with pytest.raises(InputError, match="not one answer.*answer with its score too"):
        read(write(tmp_path, "q1 d3 1.5\nq1 d4 2\nq1 d0\n"))
    np.testing.assert_array_equal(read(write(tmp_path, "q1 d3 1.5\nq1 d0 2\n")).teacher_scores[0], [2, 1.5, NAN])
