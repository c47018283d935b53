"""Names from folders and files, made safe to show: no control character reaches a terminal, page or spreadsheet raw."""

import re
from hashlib import sha256
from urllib.parse import quote

# Control characters, line and paragraph separators, characters that reorder the text around them, and lone surrogates,
# which stand for the bytes of a file name that is not UTF-8 and cannot be encoded.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

# File systems allow 255 bytes; the rest is for what is added to a name.
_MAX_NAME = 200


def escape_unprintable(text: str, *, keep: str = "") -> str:
    """Return the text with unprintable characters as Python writes them, such as `\\x1b`.

    Args:
        keep: characters to leave as they are, such as a newline.
    """
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] in keep else _escape(match[0]), text)


def escape_spreadsheet(text: str) -> str:
    """Return the text of a CSV cell such that no spreadsheet takes it for a formula. Numbers stay as they are."""
    text = escape_unprintable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def quote_file_name(name: str) -> str:
    """Return a text as a file name: special characters are quoted, and a long text is cut and ends in its hash."""
    quoted = quote(name, safe="+, ", errors="surrogateescape")
    if len(quoted) <= _MAX_NAME:
        return quoted
    return f"{re.sub('%.?$', '', quoted[:_MAX_NAME])}-{sha256(quoted.encode()).hexdigest()[:16]}"


def _escape(character: str) -> str:
    # A surrogate that stands for a byte is shown as the byte.
    is_byte = "\udc80" <= character <= "\udcff"
    return f"\\x{ord(character) - 0xDC00:02x}" if is_byte else character.encode("unicode_escape").decode()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
