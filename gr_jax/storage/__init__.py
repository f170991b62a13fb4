"""Artefacts on disk: folders with a manifest, written whole or not at all, verified when read."""

from gr_jax.storage.arrays import load_array as load_array
from gr_jax.storage.arrays import new_array as new_array
from gr_jax.storage.atomic import check_writable as check_writable
from gr_jax.storage.atomic import explaining as explaining
from gr_jax.storage.atomic import resolved as resolved
from gr_jax.storage.atomic import write_bytes as write_bytes
from gr_jax.storage.atomic import write_json as write_json
from gr_jax.storage.atomic import write_text as write_text
from gr_jax.storage.atomic import writing as writing
from gr_jax.storage.checksums import Checksums as Checksums
from gr_jax.storage.content import check_counts as check_counts
from gr_jax.storage.content import explain_content as explain_content
from gr_jax.storage.folder import MANIFEST as MANIFEST
from gr_jax.storage.folder import Manifest as Manifest
from gr_jax.storage.folder import is_complete as is_complete
from gr_jax.storage.folder import read_folder as read_folder
from gr_jax.storage.folder import refuse_to_replace_others as refuse_to_replace_others
from gr_jax.storage.folder import write_folder as write_folder
from gr_jax.storage.locks import locked as locked
from gr_jax.storage.notes import read_note as read_note
from gr_jax.storage.notes import refuse_no_file as refuse_no_file
