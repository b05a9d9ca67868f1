"""Sends one request of the memcached text protocol and prints the reply.

    python3 ask.py get NAME
    python3 ask.py set NAME VALUE

The server is expected at 127.0.0.1:11211, or at the address in EVERMAP_ADDRESS.
"""

import os
import socket
import sys

ENDS = (b"END\r\n", b"STORED\r\n", b"ERROR\r\n")


def main():
    host, port = os.environ.get("EVERMAP_ADDRESS", "127.0.0.1:11211").rsplit(":", 1)
    words = sys.argv[1:]
    if words[:1] == ["set"] and len(words) == 3:
        value = words[2].encode()
        request = b"set %s 0 0 %d\r\n%s\r\n" % (words[1].encode(), len(value), value)
    elif words[:1] == ["get"] and len(words) == 2:
        request = b"get %s\r\n" % words[1].encode()
    else:
        sys.exit(__doc__)
    reply = b""
    with socket.create_connection((host, int(port)), timeout=10) as server:
        server.sendall(request)
        while not reply.endswith(ENDS):
            part = server.recv(65536)
            if not part:
                break
            reply += part
    print(reply.decode(errors="replace").replace("\r\n", "\n"), end="")


main()
