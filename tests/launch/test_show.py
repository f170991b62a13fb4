"""What people see of hits."""

import numpy as np

from gr_jax.corpus import Corpus, Document
from gr_jax.retrievers import Evidence, Ranking, Searcher
from launch import show

CORPUS = Corpus.from_documents(
    [
        Document("a", "Aqueducts", "The First aqueduct was built by Appius Claudius."),
        Document("b", "Oil", "The embargo of 1973 raised its price."),
    ]
)


class FindsByPhrases:
    """Both documents, the first by two n-grams and the second by one that stands only in its title."""

    num_documents = 2

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        reasons = (
            (Evidence("ngram", "first aqueduct", 9.0), Evidence("ngram", "built", 2.0)),
            (Evidence("ngram", "oil", 1.0),),
        )
        ranking = np.asarray([[0, 1]], np.int32), np.asarray([[11.0, 1.0]], np.float32)
        return Ranking(*ranking, (reasons,) if explain else None)


def test_phrases_by_which_a_document_was_found_are_marked_in_its_text(capsys):
    show.show_hits(Searcher(FindsByPhrases(), CORPUS), "Who built the first aqueduct?", k=2)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "? Who built the first aqueduct?"
    assert printed[2].strip() == "The »First aqueduct« was »built« by Appius Claudius."
    assert printed[4].strip() == CORPUS[1].text
