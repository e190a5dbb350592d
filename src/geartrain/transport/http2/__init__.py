"""HTTP/2 without sockets (RFC 9113): bytes in, events and bytes out. It knows no loop, no route and no handler."""
