"""The requests that replies.py sends. `|` is a line end, and `@` a key that no other case uses."""


def _lines(text):
    return text.replace("|", "\r\n").encode("latin-1")


def _request(text):
    return _lines(text + "|") if text else b""


LONG = "k" * 251
VALUE = "x" * 40

_SAME = [
    # Storage.
    "set @ 0 0 1|x|get @|gets @", "set @ 7 0 0||get @", "set @ 4294967295 0 1|x|get @", "set @ 0 0 1 noreply|x|get @",
    "add @ 0 0 1|x|add @ 0 0 1|y|get @", "replace @ 0 0 1|x", "append @ 0 0 1|x", "prepend @ 0 0 1|x noreply",
    "set @ 5 0 2|bc|append @ 9 0 1|d|prepend @ 8 0 1|a|get @", "cas @ 0 0 1 1|x",
    "set @ 0 0 1|x|cas @ 0 0 1 0|y|get @", "set @ 0 -1 1|x|get @", "set @ 0 2147483647 1|x|get @",
    "set @ 0 100 1|x|get @", f"set @ 0 0 40|{VALUE}|get @ @ nope @",
    # Lookups and the rest of the classic commands.
    "get @", "gets @ nope", "gat 0 @", "set @ 3 0 1|x|gat 9 nope @|gats 9 @", "set @ 0 0 1|x|gat -1 @|get @",
    "gat x @", "delete @", "set @ 0 0 1|x|delete @|get @", "set @ 0 0 1|x|delete @ 0|get @",
    "set @ 0 0 1|x|delete @ 5|get @", "delete @ noreply", "set @ 0 0 2|10|incr @ 5|decr @ 6|get @",
    "set @ 0 0 3|100|decr @ 1|get @", "set @ 0 0 1|5|decr @ 9", "set @ 0 0 1|x|incr @ 1", "incr @ 1", "incr @ x",
    "incr @ -1", "incr @ 18446744073709551616", "touch @ 0", "set @ 0 0 1|x|touch @ -1|get @", "touch @ x",
    "set @ 0 0 1|5|incr @ +1|touch @ +9|gat +5 @", "flush_all|version", "flush_all noreply", "flush_all 0 noreply",
    "flush_all x", "flush_all noreply 5", "verbosity 0", "version x", "stats reset", "stats foo", "stats detail",
    "stats detail x", "stats detail on|stats detail off", "stats sizes", "stats cachedump", "stats cachedump 1",
    "stats cachedump x 1", "stats cachedump 64 1", "stats nope x", "cache_memlimit", "cache_memlimit x",
    "cache_memlimit 7", "cache_memlimit 9999999999999", "nonsense", "nonsense x y", "lru tune",
    "lru tune 10 25 0.1 2.0", "lru mode segmented", "lru mode x", "lru temp_ttl x", "lru_crawler",
    "lru_crawler crawl x", "lru_crawler tocrawl 10", "lru_crawler tocrawl x", "lru_crawler sleep 100",
    "lru_crawler sleep 9999999", "lru_crawler metadump 0", "lru_crawler metadump x", "slabs automove x", "slabs",
    "slabs reassign 1 1", "slabs reassign 1", "slabs reassign x 1", "stats extstore", "stats items x",
    "watch nonsense", "quit", "GET / HTTP/1.1|Host: x|",
    # The meta protocol.
    "mn", "mg @", "mg @ v k O1", "mg @ q|mg @ q v k|mn", "ms @ 1|x|mg @", "ms @ 2 F5 T100|hi|mg @ v s t f k O12",
    "ms @ 1 q|x|mg @ v", "ms @ 1 ME|x|ms @ 1 ME|y|mg @ v", "ms @ 1 MR|x", "ms @ 1|x|ms @ 1 MA|y|ms @ 1 MP|z|mg @ v",
    "ms @ 1|x|md @|mg @", "md @ q", "md @ k Oz", "ms @ 1|x|md @ I T30|mg @ v t|mg @ v", "ms @ 1|5|ma @ v|ma @ v MD",
    "ma @ N0 J13 v", "ma @", "ma @ q k", "ms @ 1|x|ma @", "mg @ N30 v t|mg @ v t|mg @ R9",
    "ms @ 1|x|mg @ h|mg @ h|mg @ u h", "set @ 0 0 1|x|touch @ 0|mg @ h", "mg @ s t u h v l q c k f", f"mg {LONG}",
    "me", "mg @ zz", "mg @ v v", "mg @ T", "mg @ Tx", "ma @ MX", "ma @ zz", "ma @ v v", "ma @ Cx", "ma @ Jx", "me @",
    "me @ z", "me @ v v", "mn x", "MG @", "mx @", "ms @ 1|x|me @", "ms Zm9v 1 b|x|mg Zm9v b v k|md Zm9v b k",
    "mg Zm9 b", "mg @ b c f h k l q s t u v O1 L P",
]

# What memcached 1.6.45 replies, and Debian's older one does not.
_OLDER = {
    "|": ("CLIENT_ERROR bad command line format|CLIENT_ERROR bad command line format|", "blank lines"),
    "set @ 0 0 1|xyz": ("CLIENT_ERROR bad data chunk|CLIENT_ERROR bad command line format|", "lines of one byte"),
    "set @ 0 0 3 noreply|xyzab": ("CLIENT_ERROR bad command line format|", "blank lines"),
    "ms @ 1|xyz": ("CLIENT_ERROR bad data chunk|CLIENT_ERROR bad command line format|", "lines of one byte"),
    "x": ("CLIENT_ERROR bad command line format|", "lines of one byte"),
    "shutdown": ("SERVER_ERROR: shutdown not enabled|", "the text"),
    "stats proxy": ("END|", "none, as without the proxy"),
    "gat 5": ("CLIENT_ERROR bad command line format|", "too few words"),
    "verbosity": ("CLIENT_ERROR bad command line format|", "too few words"),
    "incr @": ("CLIENT_ERROR bad command line format|", "too few words"),
    "get": ("CLIENT_ERROR bad command line format|", "too few words"),
    "mg": ("CLIENT_ERROR bad command line format|", "too few words"),
    "md": ("CLIENT_ERROR bad command line format|", "too few words"),
    "ma": ("CLIENT_ERROR bad command line format|", "too few words"),
    "md @ Cx": ("CLIENT_ERROR bad token in command line format|", "the text"),
    "ms @ 1 MA N0|y|mg @ v": ("HD|VA 1|y|", "append creates"),
    "lru_crawler metadump 2": ("OK|END|", "the first line"),
    "ms @ 1 E7 c|x|mg @ c": ("HD cN|HD cN|", "chosen ids"),
    "ms @ 1 E0 c|x|mg @ v": ("HD cN|VA 1|x|", "the id 0 is a new one"),
    "set K 0 0 9|flush_all|get @": ("CLIENT_ERROR bad command line format|END|", "the data is dropped"),
    "set @ x 0 9|flush_all|get @": ("CLIENT_ERROR bad command line format|END|", "the data is dropped"),
    "ms K 9|flush_all|get @": ("CLIENT_ERROR bad command line format|END|", "the data is dropped"),
}

# What is answered differently on purpose: see docs/use/memcached-differences.md.
_OURS = {
    "set @ 0 2147483648 1|x|get @": ("STORED|VALUE @ 0 1|x|END|", "an expiry after 2038"),
    "mg @ N30 h|mg @ h": ("HD h0 W|HD h0 Z|", "who creates an item has not read it"),
    "set @ 0 0 1|1|incr @ 1|mg @ h": ("STORED|2|HD h1|", "incr reads the item"),
    "set @ 0 0 1|x|append @ 0 0 1|y|mg @ h": ("STORED|STORED|HD h1|", "append reads the item"),
}

# What is refused in front of its data, and the reply.
_REFUSED = {
    "set refused 0 0 LEN": "SERVER_ERROR object too large for cache|",
    "add refused 0 0 LEN": "SERVER_ERROR object too large for cache|",
    "replace refused 0 0 LEN": "SERVER_ERROR object too large for cache|",
    "append refused 0 0 LEN": "SERVER_ERROR object too large for cache|",
    "cas refused 0 0 LEN 1": "SERVER_ERROR object too large for cache|",
    "set refused 0 0 LEN noreply": "",
    "ms refused LEN": "SERVER_ERROR object too large for cache|",
    "ms refused LEN q ME k": "SERVER_ERROR object too large for cache|",
    "ms refused LEN z": "CLIENT_ERROR invalid flag|",
    "ms refused LEN MX": "CLIENT_ERROR invalid mode for ms M token|",
    "ms refused LEN T": "CLIENT_ERROR bad token in command line format|",
}


def _numbered():
    """All cases, each with keys of its own."""
    table = [(text, None) for text in _SAME] + [*_OLDER.items(), *_OURS.items()]
    for number, (text, listed) in enumerate(table):
        def own(text, number=number):
            return text.replace("@", f"key-{number}").replace("K ", LONG + " ")

        yield _request(own(text)), listed and (_lines(own(listed[0])), listed[1]), text


CASES, OLDER, OURS = [], {}, {}
for request, listed, text in _numbered():
    CASES.append(request)
    if listed:
        (OLDER if text in _OLDER else OURS)[request] = listed
REFUSED = [(_lines(line), _lines(reply)) for line, reply in _REFUSED.items()]
