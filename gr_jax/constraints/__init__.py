"""Which token may follow which prefix: automata as pytrees of arrays."""

from gr_jax.constraints.base import Candidates as Candidates
from gr_jax.constraints.base import Constraint as Constraint
from gr_jax.constraints.base import Scores as Scores
from gr_jax.constraints.everything import Everything as Everything
from gr_jax.constraints.fm_index import FMIndex as FMIndex
from gr_jax.constraints.fm_index import FMState as FMState
from gr_jax.constraints.folders import load_constraint as load_constraint
from gr_jax.constraints.folders import save_constraint as save_constraint
from gr_jax.constraints.mixed import Mixed as Mixed
from gr_jax.constraints.sharded_fm_index import NgramIndex as NgramIndex
from gr_jax.constraints.sharded_fm_index import ShardedFMIndex as ShardedFMIndex
from gr_jax.constraints.sharded_fm_index import ShardedFMState as ShardedFMState
from gr_jax.constraints.token_text_trie import TokenTextTrie as TokenTextTrie
from gr_jax.constraints.trie import Trie as Trie
from gr_jax.constraints.trie import TrieState as TrieState
