"""Fetches models and weights that lie elsewhere into a cache on disk.

What is fetched is named by an operator or an author, who are trusted; the services that it comes from are checked. The
libraries of the services are imported when the first of their references is met, and belong to the extra `remote`.
"""
