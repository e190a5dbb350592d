"""Fetching and sending: inputs by URL, output files, the folders they lie in.

Every URL here comes from a client or an operator. A client's URL is hostile until `policy` has passed the address
that it leads to. The modules that need httpx import it when the first URL is met, since it costs 150 ms.
"""
