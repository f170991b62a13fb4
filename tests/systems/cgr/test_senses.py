"""Which pages share the sense of a token."""

import re

import numpy as np

from gr_jax.docids import Docids
from gr_jax.systems.cgr.senses import senses_of, senses_page
from gr_jax.text import ByteVocabulary

SHIFT = 1
TEXTS = ["ab", "b<", "aa", "a"]
# Ids 1 … 3 write "a", "b" has 4 and 5, 6 is "<".
IDS = [[1, 4], [5, 6], [1, 2], [3]]


def made():
    words = ByteVocabulary()
    tokens = [[token + SHIFT for token in words.encode(text)] for text in TEXTS]
    titles = Docids.build(tokens, vocab_size=300, eos_id=299, scheme="titles", texts=TEXTS, meta={"shift": SHIFT})
    written = Docids.build(IDS, vocab_size=8, eos_id=7)
    letter = {text: words.encode(text)[0] + SHIFT for text in "ab<"}
    text_of = np.array([-1, *[letter["a"]] * 3, *[letter["b"]] * 2, letter["<"], 299], np.int32)
    return titles, written, text_of, words, letter


def test_pages_of_each_sense():
    titles, written, text_of, _, letter = made()
    own = {titles.name(row): row for row in range(len(titles))}
    found = senses_of(titles, written, text_of)
    assert found == {
        letter["a"]: {1: [own["aa"], own["ab"]], 2: [own["aa"]], 3: [own["a"]]},
        letter["b"]: {4: [own["ab"]], 5: [own["b<"]]},
    }


def test_the_page_shows_them():
    titles, written, text_of, words, _ = made()
    shown = senses_page(titles, written, text_of, words)
    assert "2 tokens have several senses" in shown and "b&lt;" in shown and "b<<" not in shown
    of_a = re.search(r"<b>a</b> in 4 titles</summary><ol>(.*?)</ol>", shown, re.DOTALL).group(1)
    assert [one.strip() for one in re.findall(r"<li>(.*?)</li>", of_a)] == ["aa · ab", "a", "aa"]
