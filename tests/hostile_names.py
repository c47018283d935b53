"""Names that a folder, a CSV file or a stored run may hold, and that some format would take for something else."""

HOSTILE_NAMES = {
    "markup": "[/b]",
    "open markup": "[bold red]x[link=file:///]",
    "emoji code": ":warning:",
    "ansi": "\x1b[31mred\x1b]0;title\x07",
    "c1": "\x9b31m",
    "formula": "=cmd()",
    "at": "@SUM(1+1)",
    "plus": "+1+cmd|' /C calc'!A0",
    "minus": "-2+3",
    "script": "</script><img src=x onerror=alert(1)>",
    "entity": "&lt;&",
    "latex": "%$#_{}~^\\",
    "template": "{{ 7 * 7 }}",
    "cjk": "領域" * 10,
    "emoji": "👩‍💻🏳️‍🌈",
    "right to left": "שלום",
    "override": "\u202egnp.exe",
    "combining": "e\u0301\u0302\u0303",
    "surrogate": "caf\udce9",
    "newline": "two\nlines\r",
    "tab": "\ta\tb",
    "nul": "a\0b",
    "separator": "a\u2028b",
    "pipe": "a|b`c`*d*",
    "quotes": "\"'",
}
# Characters that no output may contain, whatever the name.
RAW = tuple("\x1b\x07\x9b\0\r\u202e\udce9\u2028")
