"""The stage of the vocabulary that texts are read in."""

from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.text import SentencePieceVocabulary
from tests import small_data
from tests.models import random_folders
from tests.small_dsi import COUNT, dsi, network, quiet


def test_a_pretrained_t5_may_have_spiece_model_alone(beir, tmp_path):
    folder = random_folders.write_t5(tmp_path / "t5", "t5_1_0")
    pieces = SentencePieceVocabulary.train((one["text"] for one in small_data.documents(COUNT)), 320)
    pieces.save(tmp_path / "saved")
    (folder / "spiece.model").write_bytes((tmp_path / "saved" / SentencePieceVocabulary.FILE).read_bytes())
    system = dsi(network=network(encoder=str(folder), vocabulary="pretrained"))
    system.run(beir, tmp_path / "run", until="vocabulary", say=quiet)
    (made,) = (tmp_path / "shared").glob("vocabulary-*")
    assert load_vocabulary(made).fingerprint == pieces.fingerprint
