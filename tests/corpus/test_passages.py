"""Documents in parts."""

from gr_jax.corpus import Corpus, Document
from gr_jax.corpus.passages import sentence_passages


def test_the_whole_and_its_first_sentences():
    corpus = Corpus.from_documents(
        [
            Document("d0", "Owls", "They hunt at night. Quietly. They sleep through the day. They see very well."),
            Document("d1", "", "There is one sentence here."),
        ]
    )
    texts, owner = sentence_passages(corpus, 2)
    assert list(texts) == [
        corpus[0].contents, "Owls They hunt at night.", "Owls They sleep through the day.", corpus[1].contents
    ]  # fmt: skip
    assert owner.tolist() == [0, 0, 0, 1]
    texts, owner = sentence_passages(corpus, 0)
    assert list(texts) == list(corpus.contents) and owner.tolist() == [0, 1]
