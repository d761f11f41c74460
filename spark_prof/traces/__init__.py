"""The data: table schemas, bundles and the readers of foreign trace formats.

What opens, reads or writes raises a CommandError where that cannot be done: the file cannot be
read, is damaged, or is none of its kind. Iterators raise it as they go.
"""
