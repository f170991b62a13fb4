"""Networks and what is done with them."""

# Networks: configurations and Linen modules.
from gr_jax.models.bert import BertConfig as BertConfig

# Starting points.
from gr_jax.models.docid_tables import initialise_docid_tables as initialise_docid_tables
from gr_jax.models.encoder_decoder import DecoderCache as DecoderCache
from gr_jax.models.encoder_decoder import EncoderDecoder as EncoderDecoder

# What trains, decodes and embeds.
from gr_jax.models.generative import EncoderDecoderModel as EncoderDecoderModel
from gr_jax.models.generative import GenerativeDecoder as GenerativeDecoder
from gr_jax.models.sentence_encoder import SentenceEncoder as SentenceEncoder
from gr_jax.models.t5 import T5Config as T5Config
from gr_jax.models.text_encoder import TextEncoder as TextEncoder
