"""Text to token ids and back."""

from gr_jax.text.encode import encode_texts as encode_texts
from gr_jax.text.huggingface import HuggingFaceVocabulary as HuggingFaceVocabulary
from gr_jax.text.loading import load_vocabulary as load_vocabulary
from gr_jax.text.sentencepiece import SentencePieceVocabulary as SentencePieceVocabulary
from gr_jax.text.transforms import TRANSFORMS as TRANSFORMS
from gr_jax.text.transforms import get_transform as get_transform
from gr_jax.text.transforms import split_identifiers as split_identifiers
from gr_jax.text.vocabulary import ByteVocabulary as ByteVocabulary
from gr_jax.text.vocabulary import Vocabulary as Vocabulary
