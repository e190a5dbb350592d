"""Access control: keys, tokens of an issuer, the origins of browsers and the names of hosts.

`access.py` puts the parts together. Only `options` is imported at the start by the command line.
"""
