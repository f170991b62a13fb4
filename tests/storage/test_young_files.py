"""A file that has just changed may change again at the same time, as a clock of seconds shows it."""

import hashlib
import os
import time

from gr_jax.storage import checksums


def test_what_changes_again_at_the_same_time_is_read_again(tmp_path):
    file, known = tmp_path / "a", checksums.Checksums(tmp_path / "known.json")
    now = time.time_ns()
    for data in (b"first", b"other"):  # of one size, in one file
        file.write_bytes(data)
        os.utime(file, ns=(now, now))
        assert known(file) == hashlib.sha256(data).hexdigest()
