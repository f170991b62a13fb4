"""Networks and what is done with them."""

from gr_jax.models.bert import BertConfig as BertConfig
from gr_jax.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from gr_jax.models.sentence_encoder import SentenceEncoder as SentenceEncoder
from gr_jax.models.t5 import T5Config as T5Config
from gr_jax.models.text_encoder import TextEncoder as TextEncoder
