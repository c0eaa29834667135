"""Modifications of plan files that must be detected."""


def changed(*path, value):
    """Return a function that changes one entry of a plan file, given as nested dicts and lists.

    ``path`` has the keys that lead to the entry.  The new entry is ``value``, or the result of
    ``value`` for the old entry if ``value`` is callable.
    """

    def change(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value(document[path[-1]]) if callable(value) else value

    return change
