"""Split the options that an input of the action holds, for bash 3.2 and later: each word ends with a zero byte.

Words are separated by spaces and line ends, and quotes hold one together as they do in a shell. A backslash is a
character like any other, as it is in a path of Windows. Run with `python -I`, so that no file of the working folder is
imported: `python -I action_words.py NAME TEXT`.
"""

import os
import shlex
import sys

name, text = sys.argv[1:]
words = shlex.shlex(text, posix=True)
words.whitespace_split, words.commenters, words.escape = True, "", ""
try:
    sys.stdout.buffer.write(b"".join(os.fsencode(word) + b"\0" for word in words))
except ValueError:
    sys.exit(f"::error title=calib::{name}: a quote is opened and not closed")
