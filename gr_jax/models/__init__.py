"""Networks and what is done with them."""

# Networks: configurations and Linen modules.
from gr_jax.models.bert import BertConfig as BertConfig
from gr_jax.models.bi_encoder import BiEncoder as BiEncoder
from gr_jax.models.bi_encoder import BiEncoderConfig as BiEncoderConfig
from gr_jax.models.bi_encoder import BiEncoderModel as BiEncoderModel

# A corpus to vectors.
from gr_jax.models.corpus_encoding import encode_corpus as encode_corpus
from gr_jax.models.corpus_encoding import load_embeddings as load_embeddings
from gr_jax.models.decoder_only import DecoderOnly as DecoderOnly
from gr_jax.models.decoder_only import DecoderOnlyConfig as DecoderOnlyConfig

# Starting points.
from gr_jax.models.docid_tables import initialise_docid_tables as initialise_docid_tables
from gr_jax.models.encoder_decoder import DecoderCache as DecoderCache
from gr_jax.models.encoder_decoder import EncoderDecoder as EncoderDecoder

# What trains, decodes and embeds.
from gr_jax.models.generative import EncoderDecoderModel as EncoderDecoderModel
from gr_jax.models.generative import GenerativeDecoder as GenerativeDecoder
from gr_jax.models.generative_model import GenerativeModel as GenerativeModel
from gr_jax.models.prompted import DecoderOnlyModel as DecoderOnlyModel
from gr_jax.models.prompted import PromptedDecoder as PromptedDecoder
from gr_jax.models.sentence_encoder import SentenceEncoder as SentenceEncoder
from gr_jax.models.t5 import T5Config as T5Config
from gr_jax.models.text_encoder import TextEncoder as TextEncoder
